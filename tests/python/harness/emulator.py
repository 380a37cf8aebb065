"""The emulated CUDA driver of ``tests/cudaemu``, compiled once per source."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from .cuda_device import VARIABLE
from .required import lacking

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ROOT / "tests" / "cudaemu"
KERNELS = ROOT / "core" / "device" / "cuda" / "kernels"
# The first part is also read by cudatest, which compiles it for the tests in Go.
_FLAGS = [
    *(SOURCES / "flags").read_text().split(),
    *("-shared", "-Wl,-Bsymbolic", f"-I{KERNELS}", f"-I{SOURCES}"),
]


def driver() -> Path:
    """The library; skips where a compiler or CUDA's headers are missing.

    Or the one that VARIABLE of ``cuda_device`` names.
    """
    given = os.environ.get(VARIABLE, "")
    if os.sep in given:
        return Path(given)
    cxx = shutil.which("c++") or lacking("c++", "no C++ compiler for the emulator")
    command = [cxx, *_FLAGS, "-isystem", str(_include())]
    path = _cache() / f"python-{_digest(command)}.so"
    if not path.exists():
        _build(command, path)
    return path


def _include() -> Path:
    packages = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13"
    for folder in (packages, Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))):
        if (folder / "include" / "cuda.h").exists():
            return folder / "include"
    return Path(lacking("toolkit", "no cuda.h in this environment's packages or CUDA_HOME"))


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "moewire" / "emulator"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _digest(command: list[str]) -> str:
    sources = [*sorted(SOURCES.iterdir()), *sorted(KERNELS.glob("*.cu*"))]
    found = hashlib.sha256(" ".join(command).encode())
    for source in sources:
        if source.is_file():
            found.update(source.read_bytes())
    return found.hexdigest()[:24]


def _build(command: list[str], path: Path) -> None:
    """As one unit: the headers of the units take most of the time."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        built, unit = Path(folder) / "libcuda.so", Path(folder) / "units.cc"
        unit.write_text("".join(f'#include "{one}"\n' for one in sorted(SOURCES.glob("*.cc"))))
        words = [*command, "-o", str(built), str(unit)]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        built.rename(path)  # whole, for other processes that look for it at this moment
