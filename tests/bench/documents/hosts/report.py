"""The results of the exchanges as a dictionary; times in microseconds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from . import cells
from .place import Settings
from .rows import Rows, between

Ranks = Sequence[Mapping[int, Mapping[str, Any]]]  # by rank, by link: what a rank measured
FLOOR = "sockets"


def exchange(num_ranks: int, settings: Settings, routing: torch.Tensor, ranks: Ranks) -> Any:
    """All links of one number of ranks."""
    found = [between(routing, settings.experts, host) for host in (0, 1)]
    row_bytes, tokens = 2 * settings.hidden, settings.tokens * num_ranks
    sums = zip(*found, strict=True)
    each = [row_bytes * sum(counts) / tokens for counts in sums]
    return {
        "ranks": num_ranks,
        "rows": [rows._asdict() for rows in found],
        "bytes_per_token": Rows(*each)._asdict(),
        "links": [_link(link, num_ranks, settings, found, ranks) for link in settings.links],
    }


def _link(
    megabits: int, num_ranks: int, settings: Settings, found: Sequence[Rows], ranks: Ranks
) -> dict[str, Any]:
    by_rank = [rank[megabits] for rank in ranks]
    leaders = by_rank[0], by_rank[num_ranks // 2]
    steps = {}
    for name in by_rank[0]["spans"]:
        step = _times([rank["spans"][name] for rank in by_rank])
        tokens = settings.tokens * num_ranks // 2
        sent = [statistics.median(leader["sent_bytes"][name]) / tokens for leader in leaders]
        step["wire_bytes_per_token"] = statistics.mean(sent)
        steps[name] = step
    for kind in ("dispatch", "combine"):
        floor_bytes = rows_of(kind, found) * 2 * settings.hidden
        _add_ratios(steps, kind, link_us(floor_bytes, megabits))
    return {"megabits": megabits, "title": cells.link_name(megabits), "steps": steps}


def rows_of(kind: str, found: Sequence[Rows]) -> float:
    """Rows that the busier host has to send, at least: a combine's are the other's dispatch's."""
    if kind == "dispatch":
        return max(rows.per_rank for rows in found)
    return max(rows.per_expert for rows in found)


def link_us(num_bytes: float, megabits: int) -> float:
    """How long a link takes for so many bytes, headers left out; 0: it is not limited."""
    return num_bytes * 8 / megabits if megabits else 0.0


def _times(spans_of_ranks: Sequence[Sequence[tuple[float, float]]]) -> dict[str, float]:
    """A sample lasts from the first rank's start to the last rank's end."""
    rounds = zip(*spans_of_ranks, strict=True)
    samples = sorted(max(end for _, end in one) - min(begin for begin, _ in one) for one in rounds)
    return {
        "median_us": statistics.median(samples) * 1e6,
        "p10_us": samples[len(samples) // 10] * 1e6,
        "p90_us": samples[(9 * len(samples)) // 10] * 1e6,
    }


def _add_ratios(steps: dict[str, dict[str, float]], kind: str, link: float) -> None:
    of_kind = {name: step for name, step in steps.items() if name.endswith(kind)}
    floor = of_kind[f"{FLOOR} {kind}"]
    for step in of_kind.values():
        step["times_floor"] = step["median_us"] / floor["median_us"]
        if link:
            step["times_link"] = step["median_us"] / link
        if "gloo dispatch" in steps:
            step["times_faster_than_gloo"] = (
                of_kind[f"gloo {kind}"]["median_us"] / step["median_us"]
            )
