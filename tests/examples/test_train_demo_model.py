"""examples/train_demo_model.py gets the text that the demo's model was trained on."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "train_demo_model.py"
DOCS_PYTHON = "3.11.7"  # half of the text is this version's manual


@pytest.mark.all
def test_check_text() -> None:
    command = [sys.executable, PROGRAM, "--check-text"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    results = {line.split()[0]: line for line in done.stdout.splitlines() if " bytes " in line}
    assert results["prose"].endswith(" ok"), done.stdout + done.stderr
    good = results["docs"].endswith(" ok")
    assert good or platform.python_version() != DOCS_PYTHON
    assert good or f"CPython {DOCS_PYTHON}" in done.stdout
    assert (done.returncode == 0) == good
