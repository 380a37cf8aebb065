"""torch.compile: with this environment's torch, and by hand with older ones."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import moewire

PROGRAMS = Path(__file__).with_name("programs")
PACKAGE = Path(moewire.__file__).parents[1]
# The oldest that is supported, and the one before the tracer knew ctypes. 2.5 to 3 GB to load and
# 6.6 GB on the disk, each.
OLD = ("2.6.0", "2.9.1")
_INSTALL_SECONDS = 3600


def run(python: str | Path, program: str = "compiled", *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    command = [python, PROGRAMS / f"{program}.py", *arguments]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0 and f"{program}: ok" in done.stdout, said
    assert "Traceback" not in said and "ignored" not in said, said  # nor one from a __del__
    return said


def test_calls_break_the_graph_and_nothing_else() -> None:
    assert re.search(r"^packed 3 graphs", run(sys.executable), re.MULTILINE)


LAYERS = ("flat", "compact", "expanded", "expanded/pieces")


@pytest.mark.parametrize(
    ("backend", "layers"),
    [
        ("aot_eager", LAYERS[:2]),
        pytest.param("aot_eager", LAYERS[2:], marks=pytest.mark.all),
        pytest.param("inductor", LAYERS[:2], marks=pytest.mark.long),
    ],
    ids=["static", "dynamic", "inductor"],
)
def test_operators_stay_in_the_graph(backend: str, layers: tuple[str, ...]) -> None:
    run(sys.executable, "compiled_ops", backend, *layers)


@pytest.mark.long
@pytest.mark.parametrize("version", OLD)
def test_with_an_older_torch(version: str) -> None:
    assert f"torch {version}" in run(python_of(version))
    assert f"torch {version}" in run(python_of(version), "compiled_ops", "aot_eager", *LAYERS)


def python_of(version: str) -> Path:
    """An interpreter with that torch, in an environment that is kept in the user's cache."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    root = caches / "moewire" / "torch" / version
    root.parent.mkdir(parents=True, exist_ok=True)
    done = root / "installed"
    with open(root.with_name(f"{version}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            _install(root, version)
            done.touch()
    return root / "bin" / "python"


def _install(root: Path, version: str) -> None:
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    python = root / "bin" / "python"
    wanted = [f"torch=={version}", "numpy", "typing_extensions"]
    for command in (
        [uv, "venv", "--quiet", "--clear", "--python", "3.11", root],
        [uv, "pip", "install", "--quiet", "--python", python, *wanted],
    ):
        subprocess.run(command, check=True, timeout=_INSTALL_SECONDS)
