"""What was measured, as tables for a document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .work import EXISTS, GET

_Row = dict[str, Any]


def tables(result: dict[str, Any]) -> str:
    """Gets by time, gets by bytes, exists."""
    rows: list[_Row] = result["rows"]
    gets = [row for row in rows if row["op"] == GET]
    exists = [row for row in rows if row["op"] == EXISTS]
    names: list[str] = result["sides"]
    parts = [
        _table("get, p50 / p99 us (times the socket's p50)", gets, names, _time),
        _table("get, GB/s (processor seconds per GB)", gets, names, _rate),
    ]
    if exists:
        parts.append(_table("exists, p50 us; million keys/s (and per core)", exists, names, _keys))
    absent = [f"{name} was not measured: {why}" for name, why in result["absent"].items()]
    return "\n\n".join([*parts, *absent]) + "\n"


def _table(
    title: str, rows: Sequence[_Row], names: Sequence[str], cell: Callable[[_Row], str]
) -> str:
    having = [name for name in names if any(name in row["sides"] for row in rows)]
    lines = [f"| {title} | {' | '.join(having)} |", "|---" * (len(having) + 1) + "|"]
    for row in rows:
        cells = [cell(row["sides"][name]) if name in row["sides"] else "" for name in having]
        lines.append(f"| {row['size']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _time(side: _Row) -> str:
    times = f" ({side['times_socket']:.2f})" if "times_socket" in side else ""
    return f"{side['p50_us']:.0f} / {side['p99_us']:.0f}{times}"


def _rate(side: _Row) -> str:
    return f"{side['gb_per_s']:.2f} ({side['processor_s_per_gb']:.2f})"


def _keys(side: _Row) -> str:
    rates = (side["keys_per_s"] / 1e6, side["keys_per_processor_s"] / 1e6)
    return f"{side['p50_us']:.0f}; {rates[0]:.2f} ({rates[1]:.2f})"
