"""examples/python/fabric_copy.py: two processes, and what each of them says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "python" / "fabric_copy.py"

pytestmark = pytest.mark.multirank


def test_copy(start) -> None:
    assert sorted(start(sys.executable, PROGRAM).stdout.splitlines()) == [
        "owner: number 7 came after 1048576 bytes",
        "writer: wrote 1048576 bytes, read back b'MOEWIRE MOEWIRE '",
    ]
