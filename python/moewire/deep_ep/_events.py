"""Events, and what is counted while operations run."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

import torch

from .. import _check
from ..buffer import Buffer
from ..event import Event, EventOverlap, Hook
from ..handle import Handle

_COUNT_BITS = (1 << 32) - 1  # of an entry of layout_range


class _Nothing:
    """Nothing to finish."""

    def finish(self) -> None:
        pass


class EventHandle(Event):
    """The moment of its construction. On a CPU, all work begun before that is done by then."""

    def __init__(self) -> None:
        super().__init__(_Nothing())


class WaitClock:
    """A context that adds the time waited for each source to int64 [R], in nanoseconds.

    It reads the buffer's counters before and after. Waiting of other threads on the same
    buffer meanwhile is counted too; a context that ends in an error adds nothing.
    """

    def __init__(self, buffer: Buffer, name: str, stats: torch.Tensor | None) -> None:
        if stats is not None:
            _check.tensor(name, stats, torch.int64, (buffer.group_size,))
        self._buffer = buffer
        self._stats = stats
        self._before: list[int] = []

    def __enter__(self) -> None:
        if self._stats is not None:
            self._before = self._waited()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._stats is not None and error is None:
            self._stats.add_(torch.tensor(self._waited()) - torch.tensor(self._before))

    def _waited(self) -> list[int]:
        waited: list[int] = self._buffer.counters()["wait_ns_for"]
        return waited

    def around(self, event: EventOverlap, hook: Hook | None) -> tuple[EventOverlap, Hook | None]:
        """Event and hook of an operation, their waiting measured as well."""
        if self._stats is None:
            return event, hook
        if event.event is not None:
            timed = _Timed(self, event.event.current_stream_wait)
            event = EventOverlap(Event(timed), event.extra_tensors)
        return event, None if hook is None else Hook(_Timed(self, hook))


class _Timed:
    def __init__(self, clock: WaitClock, finish: Callable[[], None]) -> None:
        self._clock = clock
        self._finish = finish

    def finish(self) -> None:
        with self._clock:
            self._finish()


def check_counts(stats: torch.Tensor | None, num_local_experts: int) -> None:
    """``cumulative_local_expert_recv_stats`` is int32 [L] or None."""
    if stats is not None:
        name = "cumulative_local_expert_recv_stats"
        _check.tensor(name, stats, torch.int32, (num_local_experts,))


def add_counts_when_done(stats: torch.Tensor | None, handle: Handle) -> None:
    """Adds the rows of each local expert, of counted sources only, when they are there."""
    if stats is None:
        return
    layout_range: torch.Tensor = handle[1]  # not the handle: it holds the operation
    operation = handle._operation
    operation.when_done(lambda: stats.add_((layout_range & _COUNT_BITS).sum(1).int()))
