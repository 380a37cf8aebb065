"""Environments with an engine in them, made from a pinned list and kept in the user's cache.

An environment lies beside the repository's own, not in it: engines ask for versions that the
tests do not have. Its name has the hash of the list, so a change of the list makes a new one.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import tomllib

HERE = Path(__file__).resolve().parent
_INSTALL_SECONDS = 900
_DONE = "installed"  # a file in an environment that is complete


def python_of(engine: str, *, own_torch: bool) -> Path:
    """The interpreter of an environment with exactly what ``<engine>-requirements.txt`` lists.

    ``own_torch``: torch is on that list; else this interpreter's packages can be imported too.
    Skips the test if it cannot be installed, and fails it if MOEWIRE_REQUIRE names the engine.
    """
    try:
        return made(engine, own_torch=own_torch)
    except subprocess.SubprocessError as error:
        from harness import required  # examples use this module without it

        required.lacking(
            engine, f"cannot install {_requirements(engine).name}: {_last_line(error)}"
        )


def made(engine: str, *, own_torch: bool) -> Path:
    """As ``python_of``, outside a test.

    Raises:
        subprocess.SubprocessError: it cannot be installed.
    """
    root = _folder(engine, _requirements(engine), own_torch)
    with locked(root.with_suffix(".lock")):
        if not (root / _DONE).exists():
            _make(root, _requirements(engine), own_torch)
            (root / _DONE).touch()
    return root / "bin" / "python"


def is_made(engine: str, *, own_torch: bool) -> bool:
    """Whether it is there already."""
    return (_folder(engine, _requirements(engine), own_torch) / _DONE).exists()


def cache() -> Path:
    """The folder of all environments."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "moewire" / "engines"


def declare(folder: Path) -> None:
    """What an installation leaves there for others to find its entry points."""
    project = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text())["project"]
    info = folder / "moewire-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: moewire\nVersion: 0\n")
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))


def _requirements(engine: str) -> Path:
    return HERE / f"{engine}-requirements.txt"


def _folder(engine: str, requirements: Path, own_torch: bool) -> Path:
    pins = re.sub(r" \\\n    --hash=\S+", "", requirements.read_text())  # they say what is there
    parts = [pins, sys.version, str(own_torch)]
    if not own_torch:
        parts.append(sysconfig.get_path("purelib"))
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return cache() / f"{engine}-{digest}"


class locked:  # noqa: N801, used like a function
    """Two programs at once make a thing once."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w")

    def __enter__(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _make(root: Path, requirements: Path, own_torch: bool) -> None:
    shutil.rmtree(root, ignore_errors=True)
    _run([sys.executable, "-m", "venv", "--without-pip", str(root)])
    if not own_torch:
        packages = Path(sysconfig.get_path("purelib", vars={"base": str(root)}))
        (packages / "tests-own.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = str(root / "bin" / "python")
    # The list is complete; what else the packages ask for is not wanted.
    flags = ["--quiet", "--no-deps", "--require-hashes", "-r", str(requirements)]
    uv = Path(sys.executable).parent / "uv"
    if uv.exists():
        _run([str(uv), "pip", "install", "--python", python, "--compile-bytecode", *flags])
    else:
        pip = [sys.executable, "-m", "pip", "--python", python]
        _run([*pip, "install", "--ignore-installed", "--disable-pip-version-check", *flags])


def _run(command: list[str]) -> None:
    environment = {"UV_SYSTEM_CERTS": "1", **os.environ}
    subprocess.run(
        command,
        check=True,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_INSTALL_SECONDS,
    )


def _last_line(error: subprocess.SubprocessError) -> str:
    said = str(getattr(error, "stdout", None) or error).strip().splitlines()
    return said[-1] if said else repr(error)
