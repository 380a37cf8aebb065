"""examples/train_moe.py: the losses of several ranks are one process's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "train_moe.py"

pytestmark = [pytest.mark.multirank, pytest.mark.slow]


def _train(start, ranks: int, *arguments: str, **options) -> str:
    flags = ["--standalone", "--nproc-per-node", str(ranks)]
    return start("torchrun", *flags, PROGRAM, *arguments, timeout=300, **options).stdout


ROUTED, CHECKPOINTED = ("--high-throughput",), ("--high-throughput", "--checkpoint")


@pytest.mark.parametrize(
    ("ranks", "arguments"),
    [
        pytest.param(2, (), marks=pytest.mark.all),
        pytest.param(4, (), marks=pytest.mark.long),
        pytest.param(2, ROUTED, marks=pytest.mark.long),
        pytest.param(2, CHECKPOINTED, marks=pytest.mark.all),
        pytest.param(4, CHECKPOINTED, marks=pytest.mark.long),
    ],
)
def test_losses_are_one_process_s_to_the_bit(start, ranks: int, arguments: tuple[str, ...]) -> None:
    output = _train(start, ranks, *arguments)
    assert f"{ranks} ranks, largest difference of 100 steps: 0\n" in output
    losses = [float(loss) for loss in re.findall(r"step \d+: loss ([\d.]+)", output)]
    assert losses[-1] < losses[0] - 1
    share = re.search(r"the fastest step took [\d.]+ ms, (\d+)% in calls of the buffer", output)
    assert share and 0 < int(share[1]) < 100


@pytest.mark.all
def test_a_corrupted_combine_is_noticed(start, wrong_library: str) -> None:
    wrong = {"MOEWIRE_LIBRARY": wrong_library, "MOEWIRE_TEST_CORRUPT": "1"}
    output = _train(start, 2, status=1, **wrong)
    assert "not one process's training" in output or "nothing was learned" in output
