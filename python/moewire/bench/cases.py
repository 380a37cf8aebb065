"""What is measured: single shapes, and the tables made of them."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import InvalidArgument

MAX_RANKS = 48


class Case(NamedTuple):
    """One shape; all ranks have the same number of tokens (T = M)."""

    table: str
    ranks: int
    tokens: int
    hidden: int = 7168
    experts: int = 64
    topk: int = 8
    dtype: str = "bf16"
    slots: int = 2

    @property
    def title(self) -> str:
        """As the tables and the progress lines call it."""
        return (
            f"R={self.ranks} T={self.tokens} H={self.hidden} E={self.experts} K={self.topk} "
            f"{self.dtype}"
        )

    def check(self) -> None:
        """Refuses what the ranks would only refuse after their start."""
        if not 1 <= self.ranks <= MAX_RANKS or self.experts % self.ranks:
            raise InvalidArgument(
                f"--ranks {self.ranks}: 1 to {MAX_RANKS}, a divisor of --experts {self.experts}"
            )
        if not 1 <= self.topk <= min(64, self.experts):
            raise InvalidArgument(f"--topk {self.topk}: 1 to {min(64, self.experts)} allowed")
        if self.tokens < 1:
            raise InvalidArgument(f"--tokens {self.tokens}: at least 1 is needed")
        block = 128 if self.dtype == "fp8" else 8
        if self.hidden < block or self.hidden % block:
            raise InvalidArgument(f"--hidden {self.hidden}: a multiple of {block} is needed")


def _tables() -> dict[str, list[Case]]:
    decode = itertools.product((2, 4), (2048, 7168), (1, 8, 32))
    return {
        "main": [Case("main", ranks, 128) for ranks in (2, 4, 8)],
        "fp8": [Case("fp8", ranks, 128, dtype="fp8") for ranks in (2, 4, 8)],
        "decode": [Case("decode", ranks, tokens, hidden) for ranks, hidden, tokens in decode],
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
QUICK = [Case("quick", 2, 16, hidden=2048), Case("quick", 2, 128, hidden=2048)]


def chosen(options: argparse.Namespace) -> list[Case]:
    """The cases that the options ask for, checked."""
    cases = _of_tables(options) if not _given(options) else _of_shapes(options)
    for case in cases:
        case.check()
    return cases


def _given(options: argparse.Namespace) -> bool:
    names = ("ranks", "tokens", "hidden", "experts", "topk", "dtype")
    return any(getattr(options, name) is not None for name in names)


def _of_tables(options: argparse.Namespace) -> list[Case]:
    if options.quick:
        return QUICK
    names = options.tables or list(TABLES)
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise InvalidArgument(f"--tables {','.join(unknown)}: allowed: {','.join(NAMES)}")
    return [case for name in names for case in TABLES.get(name, ())]


def overlapping(options: argparse.Namespace) -> list[Case]:
    """Those of the overlap table, if the options ask for it."""
    everything = not (options.quick or options.tables or _given(options))
    return OVERLAP if everything or "overlap" in (options.tables or ()) else []


def _of_shapes(options: argparse.Namespace) -> list[Case]:
    """Every combination of what was given; the rest as in the main table."""
    return [
        Case("chosen", ranks, tokens, hidden, experts, topk, dtype, options.slots)
        for dtype, ranks, hidden, experts, topk, tokens in itertools.product(
            options.dtype or ["bf16"],
            options.ranks or [2],
            options.hidden or [7168],
            options.experts or [64],
            options.topk or [8],
            options.tokens or [128],
        )
    ]


# Copies of all rows that lie in memory at once, besides one pair per slot here and in the floor.
_PAIRS_PER_PEER = 2


def resident_bytes(case: Case, peers: Sequence[str]) -> int:
    """About what one case needs: received rows and expert outputs of all ranks."""
    num_peers = len(peers)
    rows = case.ranks * case.tokens * case.topk * 2 * case.hidden
    pairs = 2 * case.slots + _PAIRS_PER_PEER * num_peers
    process = 400 << 20  # a Python process with torch
    # Its fallback fills every expert's rows up to R * M, and keeps three such tensors.
    padded = 3 * rows * case.experts // case.topk if "mooncake" in peers else 0
    return 2 * rows * pairs + rows + padded + case.ranks * (1 + num_peers) * process


def available_bytes() -> int:
    """What the kernel says can be used without swapping; much if it does not say."""
    try:
        with open("/proc/meminfo") as lines:
            found = next(line for line in lines if line.startswith("MemAvailable:"))
            return int(found.split()[1]) << 10
    except (OSError, StopIteration):
        return 1 << 62
