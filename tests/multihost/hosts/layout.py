"""The host of each rank, as variables of the environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from harness.member import Rank

KEY = bytes(range(32)).hex()
OTHER_KEY = bytes(range(1, 33)).hex()
LOOPBACK = "127.0.0.1"

Variables = dict[str, str]


def hosts(layout: str, **variables: str) -> list[Variables]:
    """The variables by process: "01|2" puts 0 and 1 on one host, and 2 on another."""
    common = {"MOEWIRE_KEY": KEY, "MOEWIRE_LISTEN": LOOPBACK, **variables}
    of = {int(rank): part for part in layout.split("|") for rank in part}
    return [{**common, "MOEWIRE_HOST": f"host-{of[rank]}"} for rank in sorted(of)]


def placed(rank: Rank, variables: Sequence[Variables], job: Callable[..., Any], *args: Any) -> Any:
    """Runs a job in its rank's own environment."""
    os.environ.update(variables[rank.rank])
    return job(rank, *args)


def remote_pairs(layout: str) -> dict[int, dict[int, str]]:
    """For each rank, the carrier to each other rank that ``Buffer.paths`` must name."""
    parts = layout.split("|")
    ranks = sorted(int(rank) for part in parts for rank in part)
    of = {int(rank): number for number, part in enumerate(parts) for rank in part}
    return {a: {b: _carrier(a, b, of) for b in ranks} for a in ranks}


def _carrier(a: int, b: int, of: dict[int, int]) -> str:
    if a == b:
        return "self"
    return "shm" if of[a] == of[b] else "tcp"
