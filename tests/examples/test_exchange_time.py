"""examples/python/exchange_time.py runs and gives a line per shape."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "python" / "exchange_time.py"

pytestmark = [pytest.mark.multirank, pytest.mark.slow]


@pytest.mark.long
def test_one_shape(start) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    output = start(*command, PROGRAM, "--shapes", "1", "--iterations", "3").stdout
    found = re.search(r"^ +2 +1024 +16 +4 +1 +([\d.]+) +([\d.]+) +([\d.]+)$", output, re.MULTILINE)
    assert found, output
    ours, theirs, ratio = map(float, found.groups())
    assert ours > 0 and theirs > 0
    assert ratio == pytest.approx(theirs / ours, abs=0.06 + 0.001 * theirs / ours**2)
