"""The results as tables for documents: ratios, and the floor that they are ratios of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from . import cells

_WAYS = {
    "moewire, digest": "digest",
    "moewire, encrypt": "encrypt",
    "moewire, digest, from Python": "digest, from Python",
    "gloo": "gloo",
    "mooncake": "Mooncake",
}
_COSTS = ("moewire, digest", "moewire, encrypt", "gloo", "mooncake")


def writes(found: Sequence[dict[str, Any]]) -> str:
    """A line per cell: the floor's speed, and that of the others as parts of it."""
    heads = ["link", "write", "in flight", "connections", "plain sockets"]
    return _table([*heads, *_WAYS.values()], (_write(cell) for cell in found))


def _write(cell: dict[str, Any]) -> list[str]:
    series = cell["series"]
    ways = [f"{series[name]['of_floor']:.2f}" if name in series else "" for name in _WAYS]
    floor = series[cell["floor"]]["gigabytes_per_second"]
    return [*_where(cell), f"{floor:.3g} GB/s", *ways]


def costs(found: Sequence[dict[str, Any]]) -> str:
    """A line per cell without a limit: processor seconds per GB, of both hosts together."""
    free = [cell for cell in found if not cell["megabits"]]
    heads = ["link", "write", "in flight", "connections", "plain sockets"]
    return _table([*heads, *(_WAYS[name] for name in _COSTS)], (_cost(cell) for cell in free))


def _cost(cell: dict[str, Any]) -> list[str]:
    names = (cell["floor"], *_COSTS)
    used = [cell["series"].get(name) for name in names]
    numbers = [f"{one['processor_seconds_per_gigabyte']:.2f}" if one else "" for one in used]
    return [*_where(cell), *numbers]


def _where(cell: dict[str, Any]) -> list[str]:
    sizes = cells.size_name(cell["message_bytes"]), str(cell["depth"]), str(cell["connections"])
    return [cells.link_name(cell["megabits"]), *sizes]


def exchanges(found: Sequence[dict[str, Any]]) -> str:
    """A line per link and operation."""
    heads = ["ranks", "link", "", "plain sockets", "Moewire", "× plain", "× link"]
    heads += ["encrypt, × plain", "× faster than gloo", "bytes per token", "gloo"]
    lines = (
        _exchange(one, link, kind)
        for one in found
        for link in one["links"]
        for kind in ("dispatch", "combine")
    )
    return _table(heads, lines)


def _exchange(found: dict[str, Any], link: dict[str, Any], kind: str) -> list[str]:
    names = ("sockets", "moewire, digest", "moewire, encrypt", "gloo")
    floor, ours, secret, gloo = (link["steps"].get(f"{name} {kind}", {}) for name in names)
    half = found["ranks"] // 2
    times = [f"{step['median_us'] / 1e3:.3g} ms" for step in (floor, ours)]
    ratios = [(ours, "times_floor"), (ours, "times_link"), (secret, "times_floor")]
    ratios.append((ours, "times_faster_than_gloo"))
    numbers = [f"{step[name]:.2f}" if name in step else "" for step, name in ratios]
    sent = [f"{step['wire_bytes_per_token']:.0f}" if step else "" for step in (ours, gloo)]
    return [f"{half} + {half}", link["title"], kind, *times, *numbers, *sent]


def _table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [f"| {' | '.join(row)} |" for row in (heads, *lines)]
    return "\n".join([rows[0], "|---" * len(heads) + "|", *rows[1:]])
