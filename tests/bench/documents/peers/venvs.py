"""Installs peers into a folder of the benchmark's own, where they affect nothing else.

Versions are pinned. The folder lies in the user's cache and is made once per interpreter.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import moewire
from moewire.bench.compiler import cache_folder
from moewire.bench.peers import Unavailable

_INSTALL_SECONDS = 600


def installed(package: str, version: str) -> Path:
    """The root of a venv that has ``package``, and sees what this interpreter has."""
    # It points at this interpreter's packages, which are not those of another one.
    own = hashlib.sha256(sys.prefix.encode()).hexdigest()[:8]
    tag = f"{sys.implementation.cache_tag}-{own}-{package}-{version}"
    root = cache_folder() / "peers" / tag
    done = root / "installed"
    if not done.exists():
        _install(root, f"{package}=={version}")
        done.touch()
    return root


def _install(root: Path, requirement: str) -> None:
    _run([sys.executable, "-m", "venv", "--without-pip", str(root)])
    # torch and numpy are those that the benchmark itself runs with.
    own = Path(sysconfig.get_path("purelib", vars={"base": str(root)}))
    own.mkdir(parents=True, exist_ok=True)
    (own / "moewire-bench.pth").write_text(sysconfig.get_path("purelib") + "\n")
    flags = ["--quiet", "--no-deps", "--disable-pip-version-check"]
    pip = [sys.executable, "-m", "pip", "--python", str(root / "bin" / "python")]
    _run([*pip, "install", "--ignore-installed", *flags, requirement])


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_INSTALL_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"cannot install it: {error}") from error
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["nothing was said"]
        raise Unavailable(f"cannot install it: {said[-1]}")


def environment(root: Path, **more: str) -> dict[str, str]:
    """For processes of the peer."""
    path = f"{root / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    folders = [Path(__file__).parents[2], Path(moewire.__file__).parents[1]]
    given = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    paths = os.pathsep.join([*map(str, folders), *given])
    return {**os.environ, "PATH": path, "PYTHONPATH": paths, **more}
