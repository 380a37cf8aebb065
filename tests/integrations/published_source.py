"""Parts of vLLM's published source packages, each fetched once and kept in the user's cache."""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import tarfile
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urljoin

import engine_venvs
from pip._internal.commands import create_command

from harness import required


class Source(NamedTuple):
    """One package, and what of it is kept."""

    name: str
    version: str
    sha256: str
    parts: tuple[str, ...]

    @property
    def archive(self) -> str:
        """The file's name in the index."""
        return f"vllm-{self.version}.tar.gz"


VLLM_TESTS = Source(
    "tests",
    "0.32.0",
    "d2c957d5eee3d0985012151315ddc62cbe0cd368fc96a5fc3510438d9dddf2ad",  # 44.5 MB
    ("tests/__init__.py", "tests/v1/__init__.py", "tests/v1/kv_offload/"),
)
# No wheel for the CPU has this version.
NEXT_EXCHANGES = Source(
    "exchanges",
    "0.33.0",
    "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112",  # 47.1 MB
    ("vllm/model_executor/layers/fused_moe/prepare_finalize/deepep_",),
)


def folder(source: Source) -> Path:
    """Where its parts are, under the package's own paths.

    Skips the test if it cannot be fetched, and fails it if MOEWIRE_REQUIRE names vLLM.
    """
    root = engine_venvs.cache() / f"vllm-{source.version}-{source.name}-{source.sha256[:16]}"
    with engine_venvs.locked(root.with_suffix(".lock")):
        if not root.exists():
            try:
                _unpack(source, _fetched(source), root)
            except OSError as error:
                required.lacking("vllm", f"cannot fetch {source.archive}: {error}")
    return root


def _fetched(source: Source) -> bytes:
    index = _index()
    link = re.search(rf'href="([^"#]*{re.escape(source.archive)})', _read(index).decode())
    if not link:
        raise FileNotFoundError(f"{index} lists no {source.archive}")
    content = _read(urljoin(index, link[1]))
    found = hashlib.sha256(content).hexdigest()
    assert found == source.sha256, f"{source.archive}: SHA-256 {found}, expected {source.sha256}"
    return content


def _index() -> str:
    """vLLM's page in the index that pip is set to; only pip itself knows which that is."""
    options = create_command("download").parser.get_default_values()
    return f"{options.index_url.rstrip('/')}/vllm/"


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return bytes(answer.read())


def _unpack(source: Source, content: bytes, root: Path) -> None:
    """Only the parts, and ``root`` only once all of them are there."""
    half = root.with_suffix(".half")
    shutil.rmtree(half, ignore_errors=True)
    top = f"vllm-{source.version}/"
    # Pythons before 3.11.4 know no filter; what is unpacked has the checksum that stands above.
    safe: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in archive:
            member.name = member.name.removeprefix(top)
            if member.name.startswith(source.parts):
                archive.extract(member, half, **safe)
    half.rename(root)
