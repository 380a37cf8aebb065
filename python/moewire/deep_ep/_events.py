"""Events, and what is counted while operations run."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .._base import check
from .._base.opaque import opaque_methods
from .._base.place import Place
from .._cuda import torch_cuda
from ..buffer import Buffer
from ..event import Event, EventOverlap, Hook, StreamEvent
from ..handle import Handle
from ._mask import Mask

_COUNT_BITS = (1 << 32) - 1  # of an entry of layout_range


class _Nothing:
    """Nothing to finish."""

    def finish(self) -> None:
        pass


@opaque_methods
class EventHandle(Event):
    """The moment of its construction.

    Of torch's current CUDA stream, if there is one. On a CPU, all that began before is done.
    """

    __slots__ = ("_moment",)

    def __init__(self) -> None:
        super().__init__(_Nothing())
        ordinal = torch_cuda.current()
        self._moment: StreamEvent | None = None
        if ordinal is not None:
            place = torch_cuda.place(ordinal)
            self._moment = StreamEvent(place, place.stream(), ())

    def current_stream_wait(self) -> None:
        """Lets what comes next on the current stream wait for that moment."""
        if self._moment is not None:
            self._moment.current_stream_wait()


class Watch:
    """A context around what an operation does in the client's thread.

    It adds the time waited for each source to int64 [R], in nanoseconds, and then refuses
    results that lack a rank. The time is the difference of the buffer's counters, so it
    includes waits of other threads on the same buffer meanwhile. After an error nothing is added.
    On CUDA nothing waits in that thread: the device adds what the operation waited, to
    ``on_device``.
    """

    def __init__(self, buffer: Buffer, mask: Mask, name: str, stats: torch.Tensor | None) -> None:
        engine = buffer.runtime
        if stats is not None:
            check.tensor(name, stats, torch.int64, (buffer.group_size,), engine.place)
        self._buffer = buffer
        self._mask = mask
        self._stats = stats if engine.drives else None
        self.on_device = None if engine.drives else stats
        self._before: list[int] = []

    def __enter__(self) -> None:
        if self._stats is not None:
            self._before = self._waited()

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            return
        if self._stats is not None:
            pairs = zip(self._waited(), self._before, strict=True)
            waited = [now - before for now, before in pairs]
            self._stats.add_(torch.tensor(waited, dtype=torch.int64, device="cpu"))
        self._mask.refuse_losses()

    def _waited(self) -> list[int]:
        waited: list[int] = self._buffer.counters()["wait_ns_for"]
        return waited

    def around(self, event: EventOverlap, hook: Hook | None) -> tuple[EventOverlap, Hook | None]:
        """Event and hook of an operation, watched as well."""
        # An event of a stream may be waited for by several, and tells nothing to this thread.
        if event.event is not None and not isinstance(event.event, StreamEvent):
            watched = _Watched(self, event.event.current_stream_wait)
            event = EventOverlap(Event(watched), event.extra_tensors)
        return event, None if hook is None else Hook(_Watched(self, hook))


class _Watched:
    def __init__(self, watch: Watch, finish: Callable[[], None]) -> None:
        self._watch = watch
        self._finish = finish

    def finish(self) -> None:
        with self._watch:
            self._finish()


def begin(
    previous_event: EventOverlap | None, async_finish: bool, allocate_on_comm_stream: bool
) -> None:
    """Waits for the ``previous_event`` of a call of the normal mode, if one is allowed."""
    both = previous_event is not None and check.boolean("async_finish", async_finish)
    if check.boolean("allocate_on_comm_stream", allocate_on_comm_stream) and not both:
        allowed = "with previous_event and async_finish only"
        raise check.refuse("allocate_on_comm_stream", "True", allowed)
    if previous_event is None:
        return
    if not isinstance(previous_event, EventOverlap):
        raise check.refuse("previous_event", type(previous_event).__name__, "an EventOverlap")
    if previous_event.event is not None:
        previous_event.event.current_stream_wait()


def ended(async_finish: bool) -> EventOverlap:
    """The event of a call of the normal mode, all of whose work is done."""
    return EventOverlap(EventHandle() if async_finish else None)


def check_counts(stats: torch.Tensor | None, num_local_experts: int, place: Place) -> None:
    """``cumulative_local_expert_recv_stats`` is int32 [L] or None."""
    if stats is not None:
        name = "cumulative_local_expert_recv_stats"
        check.tensor(name, stats, torch.int32, (num_local_experts,), place)


def add_counts_when_done(stats: torch.Tensor | None, handle: Handle, event: EventOverlap) -> None:
    """Adds the rows of each local expert, of counted sources only, when they are there.

    On CUDA the operation's stream does that, and the event comes after it.
    """
    if stats is None:
        return
    layout_range: torch.Tensor = handle[1]  # not the handle: it holds the operation
    operation = handle._operation
    operation.when_done(lambda: stats.add_((layout_range & _COUNT_BITS).sum(1).int()))
    if isinstance(event.event, StreamEvent):
        event.event.move_behind(stats)
