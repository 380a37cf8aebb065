"""examples/store_restart.py as a person starts it: the tiny random model, a user's store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import engine_venvs
import pytest
import vllm_model

from harness.block_server import Served, free_port

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 600

pytestmark = [pytest.mark.slow, pytest.mark.all]


def test_three_lives(tmp_path: Path) -> None:
    """Times of so small a model say nothing, so any ratio will do."""
    engine_venvs.python_of("vllm", own_torch=True)
    vllm_model.make(tmp_path / "model")
    blocks = tmp_path / "blocks"
    at = ("--listen", f"127.0.0.1:{free_port()}")
    with Served(tmp_path, "--storage", "file", "--path", str(blocks), *at) as one:
        command = ["--blocks", str(blocks), "--model", str(tmp_path / "model")]
        command += ["--prompt-tokens", "200", "--at-least", "0"]
        done = subprocess.run(
            [sys.executable, str(ROOT / "examples" / "store_restart.py"), *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert one.process.wait(20) == 0, "it was not stopped"
    assert done.returncode == 0, done.stdout
    assert "ok   all lives wrote the same 32 tokens" in done.stdout
    assert "ok   192 of 200 tokens came from the store" in done.stdout
    assert "BAD" not in done.stdout and done.stdout.count("█") > 48
