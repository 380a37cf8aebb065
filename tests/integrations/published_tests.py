"""vLLM's own tests, from its published source package: fetched once, kept in the user's cache."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import published_source
import pytest

_SECONDS = 300


def folder() -> Path:
    """Where ``tests/v1/kv_offload`` is."""
    return published_source.folder(published_source.VLLM_TESTS)


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
