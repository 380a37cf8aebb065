"""What is measured between two hosts, and the arithmetic of it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from moewire.errors import InvalidArgument

# Bytes of one burst. Enough that its start and end do not matter; not more than _BURST_SECONDS of a
# slow link; and few enough messages for a slow series to end.
_BURST_BYTES = 64 << 20
_BURST_SECONDS = 0.08
_MAX_MESSAGES = 512
# Cells that take longer, because every connection has a message, are left out.
_LONGEST_SECONDS = 0.4
# Of all messages that are begun and not ended; also the memory that is written.
_IN_FLIGHT_BYTES = 32 << 20
_MAX_DEPTH = 8


class Cell(NamedTuple):
    """One burst of writes of one size, from host 0 to host 1."""

    megabits: int  # of the link; 0: not limited
    message_bytes: int
    connections: int
    depth: int  # messages in flight; 1: each one is waited for
    num_messages: int  # of a burst

    @property
    def total_bytes(self) -> int:
        """Of one burst."""
        return self.message_bytes * self.num_messages

    @property
    def link_seconds(self) -> float:
        """What the link needs for a burst, at least; 0: it is not limited."""
        return self.total_bytes * 8e-6 / self.megabits if self.megabits else 0.0

    @property
    def title(self) -> str:
        """As tables call it."""
        many = "one at a time" if self.depth == 1 else f"{self.depth} in flight"
        sockets = "1 connection" if self.connections == 1 else f"{self.connections} connections"
        return f"{link_name(self.megabits)}, {size_name(self.message_bytes)}, {many}, {sockets}"


def link_name(megabits: int) -> str:
    """As tables call a link."""
    if not megabits:
        return "unshaped"
    return f"{megabits / 1000:g} Gbit/s" if megabits >= 1000 else f"{megabits} Mbit/s"


def size_name(num_bytes: int) -> str:
    """As tables call a number of bytes."""
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if num_bytes % unit == 0:
            return f"{num_bytes // unit} {name}"
    return f"{num_bytes} B"


def depth_of(message_bytes: int) -> int:
    """How many are in flight where several are: up to 8, and 32 MiB, but two at least."""
    return max(2, min(_MAX_DEPTH, _IN_FLIGHT_BYTES // message_bytes))


def count_of(message_bytes: int, connections: int, megabits: int) -> int:
    """Messages of a burst: a multiple of the connections."""
    wanted = _BURST_BYTES
    if megabits:
        wanted = min(wanted, int(megabits * 1e6 / 8 * _BURST_SECONDS))
    count = max(connections, min(_MAX_MESSAGES, wanted // message_bytes))
    return -(-count // connections) * connections


def cells(links: Sequence[int], sizes: Sequence[int], connections: Sequence[int]) -> list[Cell]:
    """One at a time over one connection, then several in flight over each number of them.

    Without those that would take the link too long.
    """
    found = []
    for megabits in links:
        for size in sizes:
            for number, depth in [(1, 1), *((n, depth_of(size)) for n in connections)]:
                # Several are in flight only where there are several.
                count = max(count_of(size, number, megabits), depth)
                count = -(-count // number) * number
                found.append(Cell(megabits, size, number, depth, count))
    return [cell for cell in found if cell.link_seconds <= _LONGEST_SECONDS]


def memory_bytes(todo: Sequence[Cell]) -> int:
    """Of the places of all messages in flight."""
    return max(cell.message_bytes * cell.depth for cell in todo)


def check(links: Sequence[int], sizes: Sequence[int], connections: Sequence[int]) -> None:
    """Refuses what could only fail later."""
    if any(rate < 0 or rate > 100_000 for rate in links):
        raise InvalidArgument(f"--links {_list(links)}: Mbit/s, 0 (unshaped) to 100000")
    if any(size < 64 or size > 256 << 20 for size in sizes):
        raise InvalidArgument(f"--sizes {_list(sizes)}: 64 bytes to 256 MiB")
    if any(number < 1 or number > 16 for number in connections):
        raise InvalidArgument(f"--connections {_list(connections)}: 1 to 16")


def _list(values: Sequence[int]) -> str:
    return ",".join(map(str, values))


# ------------------------------------------------------------------- summaries --


class Sample(NamedTuple):
    """One burst."""

    seconds: float
    processor_seconds: float  # of the processes of both hosts


def percentiles(samples: Sequence[Sample], num_bytes: int) -> dict[str, float]:
    """Of one series: GB/s of the median, and of the 10th and 90th percentile of times."""
    ordered = sorted(sample.seconds for sample in samples)
    processor = statistics.median(sample.processor_seconds for sample in samples)
    slow, fast = ordered[(9 * len(ordered)) // 10], ordered[len(ordered) // 10]
    median = statistics.median(ordered)
    return {
        "median_us": median * 1e6,
        "processor_seconds_per_gigabyte": processor / num_bytes * 1e9,
        "gigabytes_per_second": num_bytes / median / 1e9,
        "p10_gigabytes_per_second": num_bytes / slow / 1e9,
        "p90_gigabytes_per_second": num_bytes / fast / 1e9,
    }


FLOORS = ("sockets, whole messages", "sockets, 128 KiB pieces", "sockets, one hot buffer")


def summarise(cell: Cell, samples: Mapping[str, Sequence[Sample]]) -> dict[str, Any]:
    """One cell: every series, with its speed as a part of the fastest plain copy's."""
    series = {name: percentiles(bursts, cell.total_bytes) for name, bursts in samples.items()}
    floor = max(
        (name for name in series if name in FLOORS),
        key=lambda name: series[name]["gigabytes_per_second"],
    )
    for found in series.values():
        fastest = series[floor]["gigabytes_per_second"]
        found["of_floor"] = found["gigabytes_per_second"] / fastest
        if cell.megabits:
            found["of_link"] = found["gigabytes_per_second"] * 8000 / cell.megabits
    return {**cell._asdict(), "title": cell.title, "floor": floor, "series": series}
