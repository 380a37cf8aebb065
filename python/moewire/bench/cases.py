"""The shapes that are measured."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Collection
from typing import NamedTuple

from .._abi import MW_MAX_RANKS as MAX_RANKS
from ..errors import InvalidArgument


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
    without_rest: bool = False  # pairs without rest, too

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


QUICK = [Case("quick", 2, 16, hidden=2048), Case("quick", 2, 128, hidden=2048)]


def chosen(options: argparse.Namespace) -> list[Case]:
    """The cases that the options ask for, checked."""
    return checked(QUICK if options.quick else _of_shapes(options))


def checked(cases: list[Case]) -> list[Case]:
    """The cases themselves; raises for one that cannot be measured."""
    for case in cases:
        case.check()
    return cases


def _of_shapes(options: argparse.Namespace) -> list[Case]:
    """Every combination of what was given, and defaults for the rest."""
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


def resident_bytes(case: Case, peers: Collection[str]) -> int:
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
