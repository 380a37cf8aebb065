"""Loads and stores of blocks, and how they end. No call waits.

A job is vLLM's: blocks of one request, in their order. It goes to the store in requests of bounded
size, and ends when each has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ._counts import Counts
from ._requests import MAX_KEYS, Answer, Kind, Request, Requests

_MAX_BYTES = 16 << 20  # of one request, or one block


class Ended(NamedTuple):
    """A job's end. ``gone``: blocks of a load that the store had lost."""

    job: int
    is_load: bool
    keys: list[bytes]
    ok: list[bytes]
    gone: list[bytes]
    seconds: float
    num_bytes: int


@dataclass
class _Job:
    number: int
    is_load: bool
    keys: list[bytes]
    started: float
    cost: int = 0  # bytes of the backlog
    ok: set[bytes] = field(default_factory=set)
    gone: list[bytes] = field(default_factory=list)
    moved: int = 0  # blocks
    left: int = 1  # requests, and one while requests are made


class Transfers:
    """``row(chunk)`` is the memory of a chunk: ``row_bytes``, or less if there is no such one."""

    def __init__(
        self,
        requests: Requests,
        row: Callable[[int], memoryview],
        row_bytes: int,
        max_backlog_bytes: int,
        clock: Callable[[], float],
        counts: Counts,
    ) -> None:
        self._requests = requests
        self._row = row
        self._row_bytes = row_bytes
        self._per_request = max(1, min(MAX_KEYS, _MAX_BYTES // row_bytes))
        self._max_backlog = max_backlog_bytes
        self._clock = clock
        self._counts = counts
        self._ended: list[Ended] = []
        self.backlog = 0  # bytes of blocks on their way to the store

    def load(self, number: int, keys: Collection[bytes], chunks: Sequence[int]) -> None:
        """Begins to fill the chunks with the blocks of ``keys``."""
        job = _Job(number, True, list(keys), self._clock())
        known = self._known(job.keys, chunks)
        self._counts.load_failures += len(job.keys) - len(known)
        for part, rows in self._parts(known):
            job.left += 1
            self._requests.ask(Request(Kind.GET, part, self._loaded(job, part), rows))
        self._less(job)

    def store(self, number: int, keys: Collection[bytes], chunks: Sequence[int]) -> None:
        """Begins to store the chunks, but for the last ones if too much is on its way already."""
        job = _Job(number, False, list(keys), self._clock())
        room = max(0, self._max_backlog - self.backlog) // self._row_bytes
        known = self._known(job.keys, chunks)
        kept = known[:room]
        self._counts.store_failures += len(job.keys) - len(known)
        self._counts.store_shed_blocks += len(known) - len(kept)
        job.cost = len(kept) * self._row_bytes
        self.backlog += job.cost
        for part, rows in self._parts(kept):
            job.left += 1
            self._requests.ask(Request(Kind.EXISTS, part, self._asked(job, part, rows)))
        self._less(job)

    def ended(self) -> list[Ended]:
        """The jobs that ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def _known(self, keys: list[bytes], chunks: Sequence[int]) -> list[tuple[bytes, memoryview]]:
        """Each key with its row, but for those of chunks that do not exist."""
        known = [(key, self._row(int(c))) for key, c in zip(keys, chunks, strict=True) if c >= 0]
        return [(key, row) for key, row in known if row.nbytes == self._row_bytes]

    def _parts(
        self, blocks: list[tuple[bytes, memoryview]]
    ) -> Iterator[tuple[list[bytes], list[memoryview]]]:
        for first in range(0, len(blocks), self._per_request):
            part = blocks[first : first + self._per_request]
            yield [key for key, _ in part], [row for _, row in part]

    def _loaded(self, job: _Job, keys: list[bytes]) -> Callable[[Answer], None]:
        def then(answer: Answer) -> None:
            whole = [n == self._row_bytes for n in answer.lengths]
            good = {k for k, ok, fits in zip(keys, answer.ok, whole, strict=True) if ok and fits}
            bad = [key for key in keys if key not in good]
            self._counts.load_blocks += len(good)
            if answer.error is None:
                job.gone += bad
                self._counts.load_misses += len(bad)
            else:
                self._counts.load_failures += len(bad)
            self._end_part(job, good)

        return then

    def _asked(
        self, job: _Job, keys: list[bytes], rows: list[memoryview]
    ) -> Callable[[Answer], None]:
        """The store is sent what it does not have: a block is large, and its key is not."""

        def then(answer: Answer) -> None:
            has = {key for key, ok in zip(keys, answer.ok, strict=True) if ok}
            job.ok |= has
            self._counts.store_present += len(has)
            lacking = [at for at, key in enumerate(keys) if key not in has]
            if answer.error is not None:
                self._counts.store_failures += len(lacking)
            elif lacking:
                part = [keys[at] for at in lacking]
                job.left += 1
                put = Request(Kind.PUT, part, self._stored(job, part), [rows[at] for at in lacking])
                self._requests.ask(put)
            self._less(job)

        return then

    def _stored(self, job: _Job, keys: list[bytes]) -> Callable[[Answer], None]:
        def then(answer: Answer) -> None:
            taken = {key for key, ok in zip(keys, answer.ok, strict=True) if ok}
            self._counts.store_blocks += len(taken)
            self._counts.store_failures += len(keys) - len(taken)
            self._end_part(job, taken)

        return then

    def _end_part(self, job: _Job, moved: set[bytes]) -> None:
        job.ok |= moved
        job.moved += len(moved)
        self._less(job)

    def _less(self, job: _Job) -> None:
        job.left -= 1
        if job.left:
            return
        self.backlog -= job.cost
        ok = [key for key in job.keys if key in job.ok]
        seconds = self._clock() - job.started
        size = job.moved * self._row_bytes
        self._ended.append(Ended(job.number, job.is_load, job.keys, ok, job.gone, seconds, size))
