"""The results as text, for people."""

from __future__ import annotations

import sys
from typing import Any

_NAMES = {
    "floor_dispatch": "copy floor, dispatch",
    "moewire_dispatch": "moewire dispatch",
    "moewire_c_dispatch": "moewire dispatch, C ABI",
    "floor_combine": "copy floor, combine",
    "moewire_combine_zero_copy": "moewire combine, zero copy",
    "moewire_combine": "moewire combine, copying",
    "moewire_c_combine_zero_copy": "moewire combine, C ABI",
    "memcpy": "memcpy of a dispatch's bytes",
    "barrier": "empty barrier of all ranks",
}
_WARM_NAMES = {"floor": "copy floor", "moewire_c": "moewire, C ABI", "moewire": "moewire"}
_OVERHEAD_NAMES = {
    "abi_version_call": "ctypes call into the library",
    "c_dispatch": "dispatch and release, called from C, R = 1, T = 0",
    "ctypes_dispatch": "the same through ctypes, struct filled beforehand",
    "python_call": "the same with checks and struct, no results built",
    "python_dispatch": "the same through Buffer.dispatch, all results built",
}


def head(result: dict[str, Any]) -> str:
    """The machine, and how quiet it was."""
    machine, settings = result["machine"], result["settings"]
    return (
        f"moewire {machine['moewire']} on {machine['cpus']} CPUs ({machine['processor']}), "
        f"{settings['repeat']} repetitions\n"
        "A sample is the time from the first rank's start to the last rank's end."
    )


def idle(found: dict[str, Any]) -> str:
    """What the idle gate found."""
    state = "quiet" if found["quiet"] else "NOT quiet: these times are noise"
    return f"{found['busy']:.0%} busy after {found['waited_seconds']:.0f} s of waiting: {state}"


def case(title: str, result: dict[str, Any]) -> str:
    """One case: a line per step."""
    heading = f"{'':30}{'median':>11}{'p10..p90':>23}{'GB/s':>8}{'x floor':>9}{'x moewire':>11}"
    lines = ["", title, heading]
    lines += [_line(name, step) for name, step in result["steps"].items()]
    lines += _warm(result["warm"])
    if result["floor"] != "c":
        lines.append(f"the floor is {result['floor']}'s: {result['floor_reason']}")
    for peer, version in result["peers"].items():
        lines.append(f"{peer}: {version}")
    for peer, reason in result["peer_failures"].items():
        lines.append(f"{peer} was not measured: {reason}")
    return "\n".join(lines)


def _warm(found: dict[str, dict[str, float]]) -> list[str]:
    """Pairs without rest."""
    if not found:
        return []
    heading = f"{'dispatch and combine, no rest':30}{'median':>11}{'p10..p90':>23}"
    lines = [f"{heading}{'x floor':>9}{'dispatch':>10}{'combine':>10}"]
    for name, pair in found.items():
        between = f"{pair['p10_us']:.1f}..{pair['p90_us']:.1f}"
        line = (
            f"{_WARM_NAMES.get(name, name):30}{pair['median_us']:8.1f} us{between:>20} us"
            f"{_number(pair, 'ratio_to_floor', 9)}{_number(pair, 'dispatch_us', 10)}"
            f"{_number(pair, 'combine_us', 10)}"
        )
        lines.append(line.rstrip())
    return lines


def failed(title: str, reason: str) -> str:
    """A case that could not be measured."""
    return f"\n{title}\nnot measured: {reason}"


def _line(name: str, step: dict[str, float]) -> str:
    label = _NAMES.get(name) or name.replace("_", " ")
    between = f"{step['p10_us']:.1f}..{step['p90_us']:.1f}"
    return (
        f"{label:30}{step['median_us']:8.1f} us{between:>20} us"
        f"{_number(step, 'gigabytes_per_second', 8)}"
        f"{_number(step, 'ratio_to_floor', 9)}{_number(step, 'times_moewire', 11)}"
    ).rstrip()


def _number(step: dict[str, float], name: str, width: int) -> str:
    return f"{step[name]:{width}.2f}" if name in step else " " * width


def overheads(costs: dict[str, float]) -> str:
    """One line per kind of call."""
    return "\n".join(
        ["", *(f"{_OVERHEAD_NAMES[name]}: {value:.2f} us" for name, value in costs.items())]
    )


def progress(text: str) -> None:
    """Overwrites one line of a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text} ", end="", file=sys.stderr, flush=True)
