"""examples/rejoin.py: a rank is killed, the others go on, a fresh process joins them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

pytestmark = [pytest.mark.multirank, pytest.mark.slow]


@pytest.mark.all
def test_a_flipped_bit_is_noticed(start, wrong_library: str) -> None:
    wrong = {"MOEWIRE_LIBRARY": wrong_library, "MOEWIRE_TEST_CORRUPT": "1"}
    output = start(sys.executable, EXAMPLES / "rejoin.py", status=1, **wrong)
    assert "wrong sums" in output.stdout


def test_rejoin(start) -> None:
    output = start(sys.executable, EXAMPLES / "rejoin.py").stdout
    found = {
        (int(rank), int(step)): (int(epoch), active)
        for rank, step, epoch, active in re.findall(
            r"rank (\d), step (\d): epoch (\d), active_ranks \[([\d, ]+)\]", output
        )
    }
    every, two = "1, 1, 1", "1, 1, 0"
    for rank in (0, 1):
        steps = [found[rank, step] for step in range(6)]
        assert steps == [(1, every)] * 2 + [(1, two)] * 2 + [(2, every)] * 2
    assert [found.get((2, step)) for step in (1, 2, 3)] == [(1, every), None, None]
    assert [found[2, step] for step in (4, 5)] == [(2, every)] * 2
