"""How the clocks of hosts differ, for traces of several hosts on one time line.

Every host's times are its own CLOCK_MONOTONIC. A rank knows the difference between this clock and
its wall clock. Heartbeats of remote ranks tell the time. From them a rank knows how far a remote
wall clock seems ahead of its own: the true lead less the time that a heartbeat takes. The fastest
heartbeat counts. Two hosts that have heard each other know the difference to within half of what
both heartbeats took together, as in Cristian's method and NTP (RFC 5905, section 8).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

KEY = "moewire_clock"  # in a trace's "otherData"


class Clock(NamedTuple):
    """The clock of a trace's times."""

    id: str  # traces with the same have the same clock
    wall_clock_ns: int  # its host's wall clock less this clock
    ranks: frozenset[int]  # of that host, as far as they are in the trace
    ahead_ns: Mapping[int, int]  # by remote rank: how far its wall clock seemed ahead

    def other_data(self) -> dict[str, Any]:
        """For ``"otherData"`` of a trace."""
        ahead = {str(rank): ns for rank, ns in sorted(self.ahead_ns.items())}
        plain = {"id": self.id, "wall_clock_ns": self.wall_clock_ns}
        return {KEY: {**plain, "ranks": sorted(self.ranks), "ahead_ns": ahead}}


def clock_of(
    pid: int | str, wall_clock_ns: int, ranks: Iterable[int], seen: Iterable[tuple[int, int]]
) -> Clock | None:
    """The clock of the ranks of this host; ``pid`` ("self": this process) is one of them.

    ``seen``: remote ranks, and how far ahead their clocks seemed (0: not known).

    None if there are no remote ranks: then nothing has to be merged with other hosts' times.
    """
    ahead: dict[int, int] = {}
    remote = False
    for rank, ns in seen:
        remote = True
        if ns:
            ahead[rank] = max(ns, ahead.get(rank, ns))
    if not remote:
        return None
    return Clock(_id(pid), wall_clock_ns, frozenset(ranks), ahead)


def _id(pid: int | str) -> str:
    """The boot, and the time namespace: containers may have clocks of their own."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    for which in (pid, "self"):
        with contextlib.suppress(OSError):  # it has ended; or a kernel without such namespaces
            return f"{boot} {os.readlink(f'/proc/{which}/ns/time')}"
    return boot


def parse(document: Mapping[str, Any]) -> Clock | None:
    """The clock that a trace names, if any. KeyError, TypeError, ValueError: it is malformed."""
    found = document.get("otherData", {}).get(KEY)
    if found is None:
        return None
    ahead = {int(rank): _ns(ns) for rank, ns in found["ahead_ns"].items()}
    ranks = frozenset(int(rank) for rank in found["ranks"])
    return Clock(str(found["id"]), _ns(found["wall_clock_ns"]), ranks, ahead)


def _ns(value: Any) -> int:
    ns = int(value)
    if abs(ns) >= 1 << 63:
        raise ValueError("a clock is more than 2^63 ns away")
    return ns


def by_id(clocks: Iterable[Clock]) -> dict[str, Clock]:
    """Each clock once, in order, with what all traces of its host know."""
    found: dict[str, Clock] = {}
    for clock in clocks:
        known = found.setdefault(clock.id, clock)
        ahead = dict(known.ahead_ns)
        for rank, ns in clock.ahead_ns.items():
            # Of the wall clock that the first trace has named.
            ns += clock.wall_clock_ns - known.wall_clock_ns
            ahead[rank] = max(ns, ahead.get(rank, ns))
        found[clock.id] = known._replace(ranks=known.ranks | clock.ranks, ahead_ns=ahead)
    return found


class Shift(NamedTuple):
    """What to add to times of one clock to get those of another."""

    ns: int
    within_ns: int | None  # how wrong it may be; None: not known
    how: str


def shift(clock: Clock, reference: Clock) -> Shift:
    """The shift from a clock's times to those of the reference."""
    if clock.id == reference.id:
        return Shift(0, 0, "the same clock")
    there = _ahead(reference, clock.ranks)  # of the clock's host, seen by the reference's
    back = _ahead(clock, reference.ranks)
    walls = clock.wall_clock_ns - reference.wall_clock_ns
    if there is not None and back is not None:
        within = max(0, -(there + back) // 2)
        return Shift(walls - (there - back) // 2, within, "heartbeats both ways")
    if there is not None:
        return Shift(walls - there, None, "heartbeats one way")
    if back is not None:
        return Shift(walls + back, None, "heartbeats one way")
    return Shift(walls, None, "wall clocks alone")


def _ahead(clock: Clock, ranks: frozenset[int]) -> int | None:
    """How far ahead a clock seemed, by the fastest heartbeat of any of the ranks."""
    return max((clock.ahead_ns[rank] for rank in ranks if rank in clock.ahead_ns), default=None)
