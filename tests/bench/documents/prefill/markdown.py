"""What was measured, as tables for a document."""

from __future__ import annotations

from typing import Any

_Row = dict[str, Any]


def tables(result: dict[str, Any]) -> str:
    """Times by shape, then bytes and memory, then what was not measured."""
    rows: list[_Row] = result["rows"]
    lines = [
        "| median, least, ms (times the floor's) | routing | scatter | gloo | floor "
        "| gather | gloo | floor |",
        "|---" * 8 + "|",
        *map(_times, rows),
        "",
        "| bytes | between hosts per token: scatter | gather | a routing "
        "| resident, of each that is held |",
        "|---" * 5 + "|",
        *map(_bytes, rows),
    ]
    absent = [f"{name} was not measured: {why}" for name, why in result["absent"].items()]
    busy = (
        ""
        if result["idle"]["quiet"]
        else f"Other work used {result['idle']['busy']:.0%} of the processors."
    )
    return "\n".join([*lines, "", *absent, busy]).rstrip("\n") + "\n"


def _times(row: _Row) -> str:
    names = ["routing moewire"]
    names += [
        f"{use} {side}" for use in ("scatter", "gather") for side in ("moewire", "gloo", "floor")
    ]
    return f"| {row['shape']} | {' | '.join(_time(row['steps'][name]) for name in names)} |"


def _time(step: _Row) -> str:
    text = f"{step['median_us'] / 1000:.2f}, {step['min_us'] / 1000:.2f}"
    if "times_floor" not in step:
        return text
    return f"{text} ({step['times_floor']:.2f}, {step['min_times_floor']:.2f})"


def _bytes(row: _Row) -> str:
    held = ""
    if "held" in row:
        held = f"{row['resident_per_routing']:.0f} of {row['held']:.0f}"
    sent = f"{row['scatter_bytes_per_token']:.0f} | {row['gather_bytes_per_token']:.0f}"
    return f"| {row['shape']} | {sent} | {row['routing_nbytes']:.0f} | {held} |"
