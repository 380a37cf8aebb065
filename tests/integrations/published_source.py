"""Parts of vLLM's published source packages, each fetched once and kept in the user's cache."""

from __future__ import annotations

import hashlib
import io
import shutil
import tarfile
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import engine_venvs

from harness import required

_FILES = "https://files.pythonhosted.org/packages"


class Source(NamedTuple):
    """One package: where it is, and what of it is kept."""

    name: str
    version: str
    path: str
    sha256: str
    parts: tuple[str, ...]

    @property
    def url(self) -> str:
        """Of the archive."""
        return f"{_FILES}/{self.path}/vllm-{self.version}.tar.gz"


VLLM_TESTS = Source(
    "tests",
    "0.32.0",
    "d5/df/5471312c76e335eaa2b8333e87ea39f0d37bfe24f10a582620e34ff12e33",  # 44.5 MB
    "d2c957d5eee3d0985012151315ddc62cbe0cd368fc96a5fc3510438d9dddf2ad",
    ("tests/__init__.py", "tests/v1/__init__.py", "tests/v1/kv_offload/"),
)
# No wheel for the CPU has this version.
NEXT_EXCHANGES = Source(
    "exchanges",
    "0.33.0",
    "f7/25/aa5684e9c59d6fc75f78926b7f15e8d9adc7de2d9e6e7575b80776ad8169",  # 47.1 MB
    "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112",
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
                required.lacking("vllm", f"cannot fetch {source.url}: {error}")
    return root


def _fetched(source: Source) -> bytes:
    with urllib.request.urlopen(source.url, timeout=60) as answer:
        content = bytes(answer.read())
    found = hashlib.sha256(content).hexdigest()
    assert found == source.sha256, f"{source.url}: SHA-256 {found}, expected {source.sha256}"
    return content


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
