"""vLLM's own tests, from its published source package: fetched once, kept in the user's cache."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import tarfile
import urllib.request
from pathlib import Path
from typing import Any

import engine_venvs
import pytest

from harness import required

VERSION = "0.32.0"
_URL = (
    "https://files.pythonhosted.org/packages/d5/df/"
    f"5471312c76e335eaa2b8333e87ea39f0d37bfe24f10a582620e34ff12e33/vllm-{VERSION}.tar.gz"
)  # 44.5 MB
_SHA256 = "d2c957d5eee3d0985012151315ddc62cbe0cd368fc96a5fc3510438d9dddf2ad"
_PARTS = ("tests/__init__.py", "tests/v1/__init__.py", "tests/v1/kv_offload/")
_SECONDS = 300


def folder() -> Path:
    """Where ``tests/v1/kv_offload`` is.

    Skips the test if it cannot be fetched, and fails it if MOEWIRE_REQUIRE names vLLM.
    """
    root = engine_venvs.cache() / f"vllm-{VERSION}-tests-{_SHA256[:16]}"
    with engine_venvs.locked(root.with_suffix(".lock")):
        if not root.exists():
            try:
                _unpack(_fetched(), root)
            except OSError as error:
                required.lacking("vllm", f"cannot fetch {_URL}: {error}")
    return root


def _fetched() -> bytes:
    with urllib.request.urlopen(_URL, timeout=60) as answer:
        content = bytes(answer.read())
    found = hashlib.sha256(content).hexdigest()
    assert found == _SHA256, f"{_URL}: SHA-256 {found}, expected {_SHA256}"
    return content


def _unpack(content: bytes, root: Path) -> None:
    """Only the parts, and ``root`` only once all of them are there."""
    half = root.with_suffix(".half")
    shutil.rmtree(half, ignore_errors=True)
    top = f"vllm-{VERSION}/"
    # Pythons before 3.11.4 know no filter; what is unpacked has the checksum that stands above.
    safe: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in archive:
            member.name = member.name.removeprefix(top)
            if member.name.startswith(_PARTS):
                archive.extract(member, half, **safe)
    half.rename(root)


def run(python: Path, work: Path, *arguments: str, **environment: str) -> dict[str, int]:
    """Runs them with the tests' own pytest, by the engine's interpreter.

    Args:
        python: the interpreter.
        work: an empty folder.
        arguments: pytest's.
        environment: variables beside this process's.

    Returns:
        How many tests ended in which way, by pytest's words.

    Raises:
        AssertionError: pytest did not end with status 0; with the end of what it printed.
    """
    paths = [str(_pytest_alone(work)), environment.pop("PYTHONPATH", "")]
    ini = work / "pytest.ini"
    ini.write_text("[pytest]\n")
    command = [str(python), "-m", "pytest", "-c", str(ini), "--rootdir", str(folder())]
    command += ["--noconftest", "-q", "-p", "no:cacheprovider", "--basetemp", str(work / "temp")]
    done = subprocess.run(
        [*command, *arguments],
        cwd=folder(),
        env={
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            **environment,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    last = done.stdout.strip().splitlines()[-1]
    words = [part.split() for part in last.partition(" in ")[0].split(", ")]
    return {word: int(number) for number, word in words}


def _pytest_alone(work: Path) -> Path:
    """A folder with pytest and what it needs, and nothing else of this environment."""
    alone = work / "pytest"
    alone.mkdir()
    site = Path(pytest.__file__).parents[1]
    for name in ("pytest", "_pytest", "pluggy", "iniconfig", "py.py"):
        (alone / name).symlink_to(site / name)
    return alone
