"""Where things are, and how a step runs a command."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from outcome import StepError

ROOT = Path(__file__).resolve().parent.parent
VENV = Path(os.environ.get("MOEWIRE_VENV") or ".venv")
VENV = VENV if VENV.is_absolute() else ROOT / VENV
BIN = VENV / "bin"


def run(*command: str | Path, env: dict[str, str] | None = None) -> None:
    """Runs a command in the repository's root; its output goes to this process's."""
    words = [str(word) for word in command]
    shown = [f"{k}={v}" for k, v in (env or {}).items()]
    print("+", *shown, *(w.removeprefix(f"{ROOT}/") for w in words), flush=True)
    try:
        status = subprocess.run(
            words, cwd=ROOT, env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL
        ).returncode
    except OSError as err:
        raise StepError(f"cannot start: {err}") from err
    if status != 0:
        raise StepError(f"exit status {status}: {' '.join(words)}")


def sources(*patterns: str) -> list[str]:
    """The tree's own files: tracked, or new and not ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z", "--", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]
