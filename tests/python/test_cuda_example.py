"""examples/cuda_layer.py: without a device, over the emulated driver, and on a device."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness import cuda_device, emulator

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "cuda_layer.py"
EMULATED = Path(__file__).with_name("programs") / "cuda_layer_emulated.py"
TORCHRUN = (*("-m", "torch.distributed.run"), *("--standalone", "--nproc-per-node", "2"))


def _run(
    environment: dict[str, str], *arguments: str, **more: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env={**environment, **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )


def test_without_a_device(environment: dict[str, str]) -> None:
    done = _run(environment, str(EXAMPLE), CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 1
    (line,) = done.stdout.splitlines()
    assert line.startswith("cuda_layer.py needs a GPU: torch ")
    assert "built without CUDA" in line or "`moewire doctor` has the driver's own words" in line


@pytest.mark.multirank
def test_two_ranks(environment: dict[str, str]) -> None:
    program = [str(EXAMPLE)] if cuda_device.wanted() else [str(EMULATED), str(emulator.driver())]
    done = _run(environment, *TORCHRUN, *program)
    assert done.returncode == 0, done.stdout
    found = re.findall(r"rank (\d): rows sent to \[(\d+), (\d+)\], errors 0\.0\d+", done.stdout)
    assert sorted(int(rank) for rank, *_ in found) == [0, 1], done.stdout
    for _, *sent in found:  # 64 tokens of 2 selections: a plain call and 3 replays
        assert sum(map(int, sent)) == 4 * 64 * 2
