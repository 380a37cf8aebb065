"""Programs as a person starts them, with what this process imports."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
if importlib.util.find_spec("moewire") is None:
    sys.path.insert(0, str(ROOT / "python"))

Start = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Runs a command in a folder of its own; fails with all it printed unless it ends so."""
    import moewire

    paths = [str(Path(moewire.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "OMP_NUM_THREADS": "1",
    }

    def run(
        *command: str | Path, status: int = 0, timeout: float = 150, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        words = [str(word) for word in command]
        try:
            done = subprocess.run(
                words,
                cwd=tmp_path,
                env={**environment, **variables},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=timeout,
            )
        except subprocess.TimeoutExpired as error:
            output = (error.stdout or b"").decode(errors="replace")
            pytest.fail(f"{words}: not ended after {timeout} s\n{output}")
        if done.returncode != status:
            pytest.fail(f"{words}: exit status {done.returncode}, not {status}\n{done.stdout}")
        return done

    return run
