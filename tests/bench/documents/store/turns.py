"""Measures all sides in turn, and says what was found."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from moewire.errors import MoewireError

from .work import EXISTS, GET, Side, Work

# Long enough for caches to be a side's own, short enough for all to see the same moments.
TURN_SECONDS = 0.05
FLOOR = "socket"


class Found(NamedTuple):
    """What one side did in one work."""

    turns: list[list[float]]  # the seconds of each call, by turn
    busy: float  # processor seconds of all calls

    @property
    def calls(self) -> list[float]:
        return [call for turn in self.turns for call in turn]


def measure(work: Work, sides: Sequence[Side], seconds: float) -> dict[str, Found]:
    """Every side of a work.

    Args:
        work: what is asked.
        sides: those that take it.
        seconds: for each of them, in turns; one turn at least.

    Raises:
        MoewireError: a side brought other bytes than were stored.
    """
    for side in sides:
        side.fill(work)
        if not side.right():
            raise MoewireError(f"{side.name}: {work.op} {work.name}: other bytes came back")
    turns: dict[str, list[list[float]]] = {side.name: [] for side in sides}
    busy = dict.fromkeys(turns, 0.0)
    for number in range(max(1, round(seconds / TURN_SECONDS))):
        # There and back, so that none always comes behind the same one.
        for side in sides if number % 2 == 0 else reversed(sides):
            before = side.busy()
            turns[side.name].append(side.run(min(seconds, TURN_SECONDS)))
            busy[side.name] += side.busy() - before
    return {name: Found(turns[name], busy[name]) for name in turns}


def summary(work: Work, found: dict[str, Found]) -> dict[str, Any]:
    """Numbers by name; ``times_socket`` compares medians, and its range those of each turn."""
    sides = {name: _side(work, one) for name, one in found.items()}
    if FLOOR in found:
        for name, one in found.items():
            ratios = _by_turn(one, found[FLOOR])
            sides[name]["times_socket"] = sides[name]["p50_us"] / sides[FLOOR]["p50_us"]
            sides[name]["times_socket_p10"] = share(ratios, 0.1)
            sides[name]["times_socket_p90"] = share(ratios, 0.9)
    return {"op": work.op, "size": work.name, "bytes": work.total, "sides": sides}


def _side(work: Work, found: Found) -> dict[str, Any]:
    calls = found.calls
    p50 = share(calls, 0.5)
    said = {"count": len(calls), "p50_us": p50 * 1e6, "p99_us": share(calls, 0.99) * 1e6}
    per_call = found.busy / len(calls)
    if work.op == GET:
        said["gb_per_s"] = work.total / p50 / 1e9
        said["processor_s_per_gb"] = per_call / work.total * 1e9
    if work.op == EXISTS:
        said["keys_per_s"] = work.num_blocks / p50
        said["keys_per_processor_s"] = work.num_blocks / per_call
    return said


def _by_turn(one: Found, floor: Found) -> list[float]:
    pairs = zip(one.turns, floor.turns, strict=True)
    median: Callable[[list[float]], float] = statistics.median
    return [median(mine) / median(plain) for mine, plain in pairs]


def share(values: Sequence[float], part: float) -> float:
    """The value that so large a part of all is below."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]
