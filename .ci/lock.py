"""Installs what a lock lists, by its hashes: a file without one, or with another, is not run."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from outcome import StepError

HASHED = ["--quiet", "--require-hashes", "-r"]


def install(run: Callable[..., Any], folder: Path, lock: Path) -> None:
    """Into the environment with its programs in ``folder``; ``run`` runs a command."""
    # uv is several times faster than pip; pip does where uv cannot be had.
    python = folder / "python"
    try:
        if not (folder / "uv").exists():
            with tempfile.NamedTemporaryFile("w", suffix=".txt") as alone:
                alone.write(pinned(lock.read_text(), "uv"))
                alone.flush()
                run(python, "-m", "pip", "install", *HASHED, alone.name)
        run(folder / "uv", "pip", "install", "--python", python, *HASHED, lock)
    except StepError as err:
        print(f"{err}; trying pip", flush=True)
        run(python, "-m", "pip", "install", *HASHED, lock)


def pinned(lock: str, name: str) -> str:
    """What a lock says of one package: its version and its hashes."""
    found = re.search(rf"^{name}==.*?(?=^\S|\Z)", lock, re.MULTILINE | re.DOTALL)
    if found is None or "--hash=sha256:" not in found[0]:
        raise StepError(f"the lock has no hashes of {name}: make lock")
    return found[0]
