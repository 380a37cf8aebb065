"""Summary of a benchmark, as a dictionary and as text."""

from __future__ import annotations

import argparse
import os
import platform
import statistics
from typing import Any

from .._version import __version__

_NAMES = {
    "floor_dispatch": "copy floor, dispatch",
    "moewire_dispatch": "moewire dispatch",
    "gloo_dispatch": "gloo dispatch",
    "floor_combine": "copy floor, combine",
    "moewire_combine_zero_copy": "moewire combine, zero copy",
    "moewire_combine": "moewire combine, copying",
    "gloo_combine": "gloo combine",
}
_OVERHEAD_NAMES = {
    "abi_version_call": "ctypes call into Go (mw_abi_version)",
    "core_dispatch": "dispatch and release through ctypes, R = 1, T = 0",
    "python_dispatch": "the same through Buffer.dispatch",
}


def summarise(options: argparse.Namespace, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Times in microseconds; ratios compare medians within this run."""
    steps = {}
    for name in ranks[0]["samples"]:
        spans = zip(*(r["samples"][name] for r in ranks), strict=True)
        samples = [max(end for _, end in s) - min(begin for begin, _ in s) for s in spans]
        steps[name] = _step(name, samples, ranks)
    for name, step in steps.items():
        kind = "combine" if "combine" in name else "dispatch"
        step["ratio_to_floor"] = step["median_us"] / steps[f"floor_{kind}"]["median_us"]
    return {
        "moewire": __version__,
        "machine": {
            "cpus": len(os.sched_getaffinity(0)),
            "processor": _processor(),
            "kernel": platform.release(),
        },
        "options": {name: value for name, value in vars(options).items() if name != "json"},
        "steps": steps,
        "speedup_over_gloo": _speedups(steps),
        "overhead_us": ranks[0]["overhead_us"],
        "counters": [rank["counters"] for rank in ranks],
    }


def _step(name: str, samples: list[float], ranks: list[dict[str, Any]]) -> dict[str, float]:
    kind = "combine_bytes" if "combine" in name else "dispatch_bytes"
    median = statistics.median(samples)
    ordered = sorted(samples)
    return {
        "median_us": median * 1e6,
        "min_us": ordered[0] * 1e6,
        "p10_us": ordered[len(ordered) // 10] * 1e6,
        "p90_us": ordered[(9 * len(ordered)) // 10] * 1e6,
        "gigabytes_per_second": sum(rank[kind] for rank in ranks) / median / 1e9,
    }


def _speedups(steps: dict[str, dict[str, float]]) -> dict[str, float]:
    if "gloo_dispatch" not in steps:
        return {}
    ours = {name: step for name, step in steps.items() if name.startswith("moewire_")}
    return {
        name.removeprefix("moewire_"): steps[
            "gloo_combine" if "combine" in name else "gloo_dispatch"
        ]["median_us"]
        / step["median_us"]
        for name, step in ours.items()
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            names = (line.split(":", 1)[1] for line in lines if line.startswith("model name"))
            return next(names, platform.machine()).strip()
    except OSError:
        return platform.machine()


def text(result: dict[str, Any]) -> str:
    """A table for people."""
    options, machine = result["options"], result["machine"]
    lines = [
        f"moewire {result['moewire']} on {machine['cpus']} CPUs ({machine['processor']})",
        "R = {ranks}, T = {tokens}, H = {hidden}, E = {experts}, K = {topk}, {dtype}, "
        "{iters} iterations".format(**options),
        "a sample is the time from the first rank's start to the last rank's end",
        "",
        f"{'':28}{'median':>10}{'min':>10}{'p10..p90':>18}{'GB/s':>8}{'x floor':>9}",
    ]
    lines += [
        _line(_NAMES[name], result["steps"][name]) for name in _NAMES if name in result["steps"]
    ]
    lines += ["", *_speedup_lines(result["speedup_over_gloo"]), *_overhead_lines(result)]
    return "\n".join(lines)


def _line(name: str, step: dict[str, float]) -> str:
    spread = f"{step['p10_us']:.0f}..{step['p90_us']:.0f}"
    return (
        f"{name:28}{step['median_us']:7.0f} us{step['min_us']:7.0f} us{spread:>15} us"
        f"{step['gigabytes_per_second']:8.2f}{step['ratio_to_floor']:9.2f}"
    )


def _speedup_lines(speedups: dict[str, float]) -> list[str]:
    return [f"{name}: {value:.1f} times as fast as gloo" for name, value in speedups.items()]


def _overhead_lines(result: dict[str, Any]) -> list[str]:
    costs = result["overhead_us"] or {}
    return [f"{_OVERHEAD_NAMES[name]}: {value:.2f} us" for name, value in costs.items()]
