"""The tables of docs/performance.md."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from moewire.bench.cases import Case
from moewire.errors import InvalidArgument


def _tables() -> dict[str, list[Case]]:
    decode = itertools.product((2, 4), (2048, 7168), (1, 8, 32))
    return {
        "main": [Case("main", ranks, 128) for ranks in (2, 4, 8)],
        "fp8": [Case("fp8", ranks, 128, dtype="fp8") for ranks in (2, 4, 8)],
        "decode": [
            Case("decode", ranks, tokens, hidden, without_rest=True)
            for ranks, hidden, tokens in decode
        ],
        # One slot: two would need more memory than the machines have that run this.
        "prefill": [
            Case("prefill", ranks, tokens, slots=1) for ranks in (2, 4) for tokens in (1024, 4096)
        ],
        "growth": [Case("growth", ranks, 128, hidden=2048) for ranks in (2, 4, 8, 16)],
    }


TABLES = _tables()
# Measured by overlap.py instead of beside a floor.
OVERLAP = [Case("overlap", 2, 8, hidden=2048), Case("overlap", 2, 128)]
NAMES = (*TABLES, "overlap")


def chosen(names: Sequence[str]) -> tuple[list[Case], list[Case]]:
    """The cases of tables, and those of the overlap table, if it is among them."""
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise InvalidArgument(f"--tables {','.join(unknown)}: allowed: {','.join(NAMES)}")
    cases = [case for name in names for case in TABLES.get(name, ())]
    return cases, OVERLAP if "overlap" in names else []
