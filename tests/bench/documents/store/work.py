"""What a run asks of every store, and how its calls are timed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import NamedTuple, Protocol

from moewire.store._bench import Case

KIB, MIB = 1 << 10, 1 << 20
GET, EXISTS = "get", "exists"


class Work(NamedTuple):
    """One kind of call: the blocks that it asks for, of as many sets in turn."""

    op: str
    num_blocks: int
    num_bytes: int
    num_sets: int = 1

    @property
    def name(self) -> str:
        if self.op == EXISTS:
            return f"{self.num_blocks} keys"
        size = Case(self.num_blocks, self.num_bytes).name
        return size if self.num_sets == 1 else f"{size}, {self.num_sets} in turn"

    @property
    def total(self) -> int:
        """Bytes of the blocks of one call."""
        return self.num_blocks * self.num_bytes

    def block_keys(self) -> list[list[bytes]]:
        """The keys of each set."""
        head = f"{self.op}-{self.num_blocks}x{self.num_bytes}"
        return [
            [f"{head}-{group}-{block:04}".encode() for block in range(self.num_blocks)]
            for group in range(self.num_sets)
        ]

    def data(self) -> Iterator[list[bytes]]:
        """The blocks of each set."""
        numbers = random.Random(self.total)
        for _ in range(self.num_sets):
            yield [numbers.randbytes(self.num_bytes) for _ in range(self.num_blocks)]


WORKS = (
    Work(GET, 1, 4 * KIB),
    Work(GET, 1, 64 * KIB),
    Work(GET, 1, MIB),
    Work(GET, 1, MIB, 128),  # more than caches hold
    Work(GET, 16, 64 * KIB),
    Work(GET, 64, 64 * KIB),
    Work(GET, 8, MIB),
    Work(EXISTS, 512, 64),
)


class Side(Protocol):
    """A store with its client, or what stands beside it."""

    name: str
    version: str

    def takes(self, work: Work) -> bool:
        """Whether it has a number to give."""

    def fill(self, work: Work) -> None:
        """Stores the blocks, and forgets those of the work before."""

    def right(self) -> bool:
        """Whether one call for each set brings the bytes that were stored."""

    def run(self, seconds: float) -> list[float]:
        """Calls for so long, at least once; the seconds of each call."""

    def busy(self) -> float:
        """Processor seconds of all its processes until now."""

    def close(self) -> None:
        """Ends its processes."""


def timed(call: Callable[[], object], seconds: float) -> list[float]:
    """What ``Side.run`` returns, of calls in this process."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return times


def in_turn(calls: list[Callable[[], object]]) -> Callable[[], object]:
    """A call that is each of ``calls`` in turn."""
    if len(calls) == 1:
        return calls[0]
    following = cycle(calls)
    return lambda: next(following)()


def processor_seconds(pid: int) -> float:
    """Of a process and its threads, those that have ended too."""
    return time.clock_gettime(~pid << 3 | 2)  # the kernel's number of that process's clock
