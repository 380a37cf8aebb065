"""``moewire trace``: what ranks did when, for ui.perfetto.dev or chrome://tracing.

Times are CLOCK_MONOTONIC, so all ranks of one host are on one time line without any agreement.
``_observe.clocks`` brings the times of several hosts onto one time line.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _abi as abi
from ._observe import clocks as _clocks
from ._observe import input_file
from .errors import InvalidArgument

if TYPE_CHECKING:
    from ._observe import live

Event = dict[str, Any]

_KINDS = {abi.MW_RECORD_DISPATCH: "dispatch", abi.MW_RECORD_COMBINE: "combine"}
_OUTCOMES = {
    abi.MW_OUTCOME_DONE: "done",
    abi.MW_OUTCOME_FAILED: "failed",
    abi.MW_OUTCOME_CANCELLED: "cancelled",
}
# After the last peer's data: what is left to do.
_LAST_PHASE = {"dispatch": "receive", "combine": "reduce"}


class Phase(NamedTuple):
    """Part of an operation in which the rank worked or waited; times in ns."""

    name: str
    begin: int
    end: int


def phases(record: abi.mw_record_t) -> list[Phase]:
    """What a rank did for one operation, without the time between call and hook.

    Args:
        record: one operation, as the library recorded it.

    Returns:
        The phases in order; none is empty.
    """
    kind = _KINDS.get(record.kind, "operation")
    placed = record.place_ns or record.start_ns
    sent = record.sent_ns or record.end_ns
    found = [
        Phase(f"{kind} prepare", record.start_ns, placed),
        Phase(f"{kind} send" if kind == "dispatch" else f"{kind} publish", placed, sent),
    ]
    if record.sent_ns and record.resume_ns:
        found.append(Phase(f"{kind} wait", record.resume_ns, record.seen_ns or record.end_ns))
    if record.sent_ns and record.seen_ns:
        begin = max(record.seen_ns, sent)
        found.append(Phase(f"{kind} {_LAST_PHASE.get(kind, 'end')}", begin, record.end_ns))
    return [phase for phase in found if phase.end > phase.begin]


def _arguments(record: abi.mw_record_t) -> dict[str, Any]:
    return {
        "operation": record.operation,
        "combine": record.combine,
        "epoch": record.epoch,
        "outcome": _OUTCOMES.get(record.outcome, str(record.outcome)),
        "tokens": record.num_tokens,
        "rows": record.num_rows,
        "rows_received": record.num_rows_received,
        "bytes": record.num_bytes,
        "prefault_bytes": record.prefault_bytes,
        "wait_us": record.wait_ns / 1e3,
        "last_rank": record.last_rank,
        "last_alone_us": record.last_alone_ns / 1e3,
        "waited_for": [rank for rank in range(abi.MW_MAX_RANKS) if record.waited_for >> rank & 1],
    }


def slices(rank: int, records: Iterable[abi.mw_record_t]) -> list[Event]:
    """One complete event of a Chrome trace per phase.

    Args:
        rank: the rank that ran the operations.
        records: its operations.

    Returns:
        The events; ``document`` makes a trace of them.
    """
    events: list[Event] = []
    for record in records:
        arguments = _arguments(record)
        for phase in phases(record):
            events.append(
                {
                    "ph": "X",
                    "name": phase.name,
                    "cat": phase.name.split()[0],
                    "pid": rank,
                    "tid": 0,
                    "ts": phase.begin / 1e3,
                    "dur": (phase.end - phase.begin) / 1e3,
                    "args": arguments,
                }
            )
    return events


def _nanoseconds(event: Event) -> tuple[int, int]:
    begin = round(event["ts"] * 1e3)
    return begin, begin + round(event["dur"] * 1e3)


def document(events: Iterable[Event], clock: _clocks.Clock | None = None) -> dict[str, Any]:
    """A whole trace: each rank is a process; slices that overlap get lanes of their own.

    Args:
        events: of all ranks; their lanes are written.
        clock: the clock of the times, for merging with those of other hosts.

    Returns:
        The trace, to be written as JSON.
    """
    slices = sorted(events, key=lambda event: (event["pid"], event["ts"], -event["dur"]))
    lanes: dict[int, _Lanes] = {}
    for event in slices:
        event["tid"] = lanes.setdefault(event["pid"], _Lanes()).take(*_nanoseconds(event))
    found = {"displayTimeUnit": "ns", "traceEvents": [*_names(lanes), *slices]}
    return {**found, "otherData": clock.other_data()} if clock else found


class _Lanes:
    """The lanes of one rank. The time per slice grows little with the number of slices."""

    def __init__(self) -> None:
        self.count = 0
        self._free: list[int] = []  # heaps
        self._busy: list[tuple[int, int]] = []  # end, lane

    def take(self, begin: int, end: int) -> int:
        """The first lane that is free from ``begin`` on; begins come in order."""
        while self._busy and self._busy[0][0] <= begin:
            heapq.heappush(self._free, heapq.heappop(self._busy)[1])
        if not self._free:
            heapq.heappush(self._free, self.count)
            self.count += 1
        lane = heapq.heappop(self._free)
        heapq.heappush(self._busy, (end, lane))
        return lane


def _names(lanes: dict[int, _Lanes]) -> list[Event]:
    names: list[Event] = []
    for rank, taken in lanes.items():
        names.append(_name("process_name", rank, 0, name=f"rank {rank}"))
        names.append(_name("process_sort_index", rank, 0, sort_index=rank))
        for lane in range(taken.count):
            label = "operations" if lane == 0 else f"in flight beside, {lane}"
            names.append(_name("thread_name", rank, lane, name=label))
    return names


def _name(what: str, rank: int, lane: int, **arguments: Any) -> Event:
    return {"ph": "M", "name": what, "pid": rank, "tid": lane, "args": arguments}


def write(trace: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Writes a trace as JSON.

    Args:
        trace: of ``document``.
        path: the file to write.

    Raises:
        OSError: the file cannot be written.
    """
    Path(path).write_text(json.dumps(trace), encoding="utf-8")


def merge(paths: Sequence[str], say: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """One trace of several files; a slice that is in more than one of them comes once.

    Times of other hosts become those of the first file that names its clock.

    Args:
        paths: files that ``Buffer.trace`` or ``moewire trace`` has written.
        say: called with a line for each file with times that are moved: by how much, and how well
            that is known.

    Returns:
        The merged trace.

    Raises:
        InvalidArgument: a file cannot be read or is no trace; the text names it.
    """
    traces = [(path, *_read(path)) for path in paths]
    clocks = _clocks.by_id(clock for _, _, clock in traces if clock is not None)
    reference = next(iter(clocks.values()), None)
    found: dict[tuple[Any, ...], Event] = {}
    for path, slices, clock in traces:
        if clock is not None and reference is not None:
            _move(slices, _clocks.shift(clocks[clock.id], reference), path, say)
        for event in slices:
            found.setdefault(_key(event), event)
    return document(found.values(), reference)


def _key(event: Event) -> tuple[Any, ...]:
    """What identifies a slice, in any file."""
    if not isinstance(event["pid"], int):
        raise TypeError(f"the rank of a slice is {event['pid']!r}")
    return (event["pid"], event["name"], *_nanoseconds(event))


def _move(events: list[Event], by: _clocks.Shift, path: str, say: Callable[[str], None]) -> None:
    if by.ns == 0:
        return
    for event in events:
        event["ts"] += by.ns / 1e3
    known = "" if by.within_ns is None else f", known to {by.within_ns / 1e3:.0f} us"
    say(f"{path}: times moved by {by.ns / 1e9:+.6f} s, by {by.how}{known}")


# What reading raises if a file is no trace.
_NO_TRACE = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError),
    *(RecursionError, input_file.NotReadable),
)


def _read(path: str) -> tuple[list[Event], _clocks.Clock | None]:
    try:
        whole = json.loads(input_file.read_file(path).decode("utf-8"))
        slices = [event for event in whole["traceEvents"] if event["ph"] == "X"]
        for event in slices:
            hash(_key(event))  # has what merging looks at
        return slices, _clocks.parse(whole)
    except _NO_TRACE as error:
        said = f"no {error}" if isinstance(error, KeyError) else str(error)
        if isinstance(error, OSError):
            said = error.strerror or said  # the rest is number and path, once more
        raise InvalidArgument(f"{path}: {said}; allowed: a trace of moewire") from error


def _take(options: argparse.Namespace) -> dict[str, Any]:
    from ._observe import live

    found = live.find()
    groups = found.groups
    for refused in found.refused:
        _say(f"not in the trace: {refused}")
    if not groups:
        raise InvalidArgument("no ranks of this user run on this machine")
    wanted = [group for group in groups if options.group in (None, group.id)]
    if len(wanted) != 1:
        ids = ", ".join(str(group.id) for group in groups)
        given = "not" if options.group is None else options.group
        raise InvalidArgument(f"--group: {given} given; allowed: {ids}")
    ranks = [g for g in live.find(wanted[0].id).groups if g.id == wanted[0].id]
    return _trace_of([rank for group in ranks for rank in group.ranks])


def _trace_of(ranks: Sequence[live.Rank]) -> dict[str, Any]:
    events: list[Event] = []
    for rank in ranks:
        events += slices(rank.rank, rank.area.records)
        if rank.area.num_damaged_records:
            _say(f"rank {rank.rank}: {rank.area.num_damaged_records} damaged records are left out")
    return document(events, _clock(ranks))


def _clock(ranks: Sequence[live.Rank]) -> _clocks.Clock | None:
    """The clock of the ranks of this host, with what they know of other clocks."""
    clocks = []
    for rank in ranks:
        seen = [(link.rank, link.clock_ahead_ns) for link in rank.area.links]
        pid = rank.pid or "self"
        clock = _clocks.clock_of(pid, rank.area.wall_clock_ns, [rank.rank], seen)
        clocks += [clock] if clock is not None else []
    return next(iter(_clocks.by_id(clocks).values()), None)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="moewire trace", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("merge", help="put traces of several ranks into one file")
    one.add_argument("files", nargs="+")
    two = commands.add_parser("take", help="read the traces of ranks that run here, or hang")
    two.add_argument("--group", type=int, help="which, by the number that `moewire top` shows")
    for command in (one, two):
        command.add_argument("-o", "--output", required=True)
    return parser


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Writes one trace file.

    Args:
        argv: the arguments; None: those of this process.

    Returns:
        The exit status.

    Raises:
        InvalidArgument: a file or an argument is wrong.
    """
    options = _parser().parse_args(argv)
    trace = merge(options.files, _say) if options.command == "merge" else _take(options)
    try:
        write(trace, options.output)
    except OSError as error:
        raise InvalidArgument(f"--output: {error}") from error
    count = sum(event["ph"] == "X" for event in trace["traceEvents"])
    print(f"{options.output}: {count} slices", file=sys.stderr)
    return 0
