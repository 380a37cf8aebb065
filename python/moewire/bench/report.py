"""The result of a case as a dictionary; times in microseconds."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from typing import Any

from .._version import __version__
from .cases import Case
from .timed import PAIRS, Round

# Raised when a name in the JSON changes its meaning.
SCHEMA = 1


def machine() -> dict[str, Any]:
    """Where this was measured."""
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "kernel": platform.release(),
        "moewire": __version__,
    }


def summarise(case: Case, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """One case; ratios compare medians within it."""
    steps = {name: _step(name, ranks) for name in ranks[0]["samples"]}
    _add_ratios(steps)
    return {
        **case._asdict(),
        "floor": ranks[0]["floor"],
        "floor_reason": ranks[0]["floor_reason"],
        "peers": ranks[0]["peers"],
        "peer_failures": ranks[0]["peer_failures"],
        "steps": steps,
        "warm": _warm(ranks, steps),
        "counters": [rank["counters"] for rank in ranks],
    }


def _step(name: str, ranks: list[dict[str, Any]]) -> dict[str, float]:
    """A sample lasts from the first rank's start to the last rank's end."""
    spans = zip(*(rank["samples"][name] for rank in ranks), strict=True)
    samples = [max(end for _, end in span) - min(begin for begin, _ in span) for span in spans]
    step, median = _percentiles(samples), statistics.median(samples)
    if name != "barrier":
        kind = "combine_bytes" if "combine" in name else "dispatch_bytes"
        step["gigabytes_per_second"] = sum(rank[kind] for rank in ranks) / median / 1e9
    return step


def _warm(ranks: list[dict[str, Any]], steps: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Pairs without rest, by series: the time of a pair, and of its two operations."""
    found = {name: _pairs([rank["warm"][name] for rank in ranks]) for name in ranks[0]["warm"]}
    for name, pair in found.items():
        pair["ratio_to_floor"] = pair["median_us"] / found["floor"]["median_us"]
        if name.startswith("moewire") and "barrier" in steps:
            limit = found["floor"]["median_us"] + 4 * steps["barrier"]["median_us"]
            pair["ratio_to_floor_and_four_barriers"] = pair["median_us"] / limit
    return found


def _pairs(rounds_of_ranks: list[list[Round]]) -> dict[str, float]:
    """Operations by themselves: the median over rounds and ranks of a round's median."""
    rounds = list(zip(*rounds_of_ranks, strict=True))
    samples = [_lasted(ranks) for ranks in rounds]
    found = _percentiles([sample / PAIRS for sample in samples])
    for kind in ("dispatch", "combine"):
        known = [getattr(one, kind) for ranks in rounds for one in ranks]
        if None not in known:
            found[f"{kind}_us"] = statistics.median(known) * 1e6
    return found


def _lasted(ranks: Sequence[Round]) -> float:
    """A round's time: that of the slowest rank, or, where ranks share cores, of all."""
    if len(ranks) <= len(os.sched_getaffinity(0)):
        return max(rank.end - rank.begin for rank in ranks)
    return max(rank.end for rank in ranks) - min(rank.begin for rank in ranks)


def _percentiles(samples: list[float]) -> dict[str, float]:
    ordered = sorted(samples)
    return {
        "median_us": statistics.median(samples) * 1e6,
        "min_us": ordered[0] * 1e6,
        "p10_us": ordered[len(ordered) // 10] * 1e6,
        "p90_us": ordered[(9 * len(ordered)) // 10] * 1e6,
    }


def kind_of(name: str) -> str:
    """dispatch or combine; empty for what is neither."""
    return next((kind for kind in ("dispatch", "combine") if kind in name), "")


def _add_ratios(steps: dict[str, dict[str, float]]) -> None:
    for name, step in steps.items():
        kind = kind_of(name)
        if not kind:
            continue
        step["ratio_to_floor"] = step["median_us"] / steps[f"floor_{kind}"]["median_us"]
        if name.startswith("moewire_") and "barrier" in steps:
            limit = steps[f"floor_{kind}"]["median_us"] + 2 * steps["barrier"]["median_us"]
            step["ratio_to_floor_and_two_barriers"] = step["median_us"] / limit
    for name, step in steps.items():
        if not name.startswith(("moewire_", "floor_")) and kind_of(name):
            ours = "moewire_dispatch" if kind_of(name) == "dispatch" else _best_combine(steps)
            step["times_moewire"] = step["median_us"] / steps[ours]["median_us"]


def _best_combine(steps: dict[str, dict[str, float]]) -> str:
    """Peers write expert outputs where they like, as zero-copy callers do here."""
    return (
        "moewire_combine_zero_copy" if "moewire_combine_zero_copy" in steps else "moewire_combine"
    )


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            names = (line.split(":", 1)[1] for line in lines if line.startswith("model name"))
            return next(names, platform.machine()).strip()
    except OSError:
        return platform.machine()
