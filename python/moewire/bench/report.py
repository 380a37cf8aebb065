"""What a case came to, as a dictionary; times in microseconds."""

from __future__ import annotations

import os
import platform
import statistics
from typing import Any

from .._version import __version__
from .cases import Case

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
        "counters": [rank["counters"] for rank in ranks],
    }


def _step(name: str, ranks: list[dict[str, Any]]) -> dict[str, float]:
    """A sample lasts from the first rank's start to the last rank's end."""
    spans = zip(*(rank["samples"][name] for rank in ranks), strict=True)
    samples = [max(end for _, end in span) - min(begin for begin, _ in span) for span in spans]
    ordered, median = sorted(samples), statistics.median(samples)
    step = {
        "median_us": median * 1e6,
        "min_us": ordered[0] * 1e6,
        "p10_us": ordered[len(ordered) // 10] * 1e6,
        "p90_us": ordered[(9 * len(ordered)) // 10] * 1e6,
    }
    if name != "barrier":
        kind = "combine_bytes" if "combine" in name else "dispatch_bytes"
        step["gigabytes_per_second"] = sum(rank[kind] for rank in ranks) / median / 1e9
    return step


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
