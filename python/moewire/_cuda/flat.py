"""Flat operations on CUDA: as ``_ep.flat`` and ``_ep.flat_combine``, launched and not waited for.

Only the device knows how many rows came. A caller that asks for the number waits for its stream.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from .. import _abi as abi
from .._base import check
from .._ep import flat_combine
from .._ep.flat_request import Request, checked_plan, fill
from .._ep.flat_results import FlatHandle, FlatReceived, FlatRows, Tensors, make_views
from .._native.plan import combine_args
from .handles import Answer, GpuFlatHandle, refuse_capture
from .operation import Launched

if TYPE_CHECKING:
    from collections.abc import Callable

    from .._native.flat_plan import FlatPlan
    from .._native.memory import Owner
    from ..event import EventOverlap, Hook, How


class GpuFlatRows(FlatRows):
    """The rows of one dispatch; while a graph is recorded, as many as there is room for."""

    def __init__(
        self,
        gpu: Any,
        raw: abi.mw_dispatch_result_t,
        plan: FlatPlan,
        copy: bool,
        stream: Any,
        captured: bool,
    ) -> None:
        self._gpu, self._stream = gpu, stream
        self._raw, self._plan, self._copy = raw, plan, copy
        self._known, self._recorded = False, captured
        self._owner: Owner | None = None
        self._copied: Tensors | None = None
        self._filling = threading.Lock()
        self.counts = gpu.place.empty((2,), torch.int32)  # N, and whether a peer has more
        self.layout = gpu.place.empty((gpu.num_ranks,), torch.int64)
        self.num_rows = 0
        self.tensors = None

    def launched(self, when_done: Callable[[Callable[[], None]], None]) -> list[torch.Tensor]:
        """Keeps the workspace from now on, and copies after the rows have come; gives the copies.

        It copies as many rows as there is room for, so that it need not wait for their number.
        """
        owner = self._owner = self._gpu.own(self._raw)
        if not self._copy:
            return []
        views = self._views(owner)
        with self._gpu.place.on(self._stream):  # memory then belongs to this stream
            copied = self._copied = views.each(torch.empty_like)

        def copy() -> None:
            for to, part in zip(copied.parts(), views.parts(), strict=True):
                to.copy_(part)

        when_done(copy)
        return copied.parts()

    def ranges(self) -> torch.Tensor:
        place = self._gpu.place
        place.keep(self.layout, place.stream())  # the copy is made there
        return super().ranges()

    def wait(self) -> None:
        """Waits for the stream of the dispatch, once."""
        with self._filling:
            if not self._known:
                self.fill()

    def fill(self) -> None:
        place = self._gpu.place
        if self._recorded:
            self.num_rows = self._plan.num_rows
        else:
            refuse_capture(place, self._stream, "num_recv_tokens")
            place.finish(self._stream)
            self.num_rows = int(self.counts[0])
        owner = self._owner  # another thread may forget at any moment
        if owner is not None:  # else the tensors were forgotten
            with place.on(self._stream):  # empty tensors are made anew
                rows = self._copied or self._views(owner)
                self.tensors = rows.first(self.num_rows, False)
            if self._owner is None:
                self.tensors = None
        self._known, self._copied = True, None

    def forget(self) -> None:
        # In this order, which ``fill`` relies on. A wait for ``fill`` could be one for a device.
        self._owner = None  # else a caller that keeps the handle would keep the workspace
        super().forget()

    def _views(self, owner: Owner) -> Tensors:
        def view(address: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
            return self._gpu.view(address, shape, dtype, owner)

        return make_views(view, self._raw, self._plan)


def dispatch(gpu: Any, request: Request, how: How, copy: bool) -> FlatReceived:
    """``Buffer.dispatch_flat``."""
    runtime, place = gpu.runtime, gpu.place
    plan = checked_plan(runtime, request, place)
    active = check.active_ranks(request.active_ranks, runtime.num_ranks, place)
    runtime.refuse_closed()
    stream, captured = gpu.streams.choose(how.async_finish)
    raw = abi.mw_dispatch_result_t(abi.SIZE_OF[abi.mw_dispatch_result_t])
    grad = request.x.requires_grad and torch.is_grad_enabled()
    with place.on(stream):  # so that memory is this stream's
        rows = GpuFlatRows(gpu, raw, plan, copy or grad, stream, captured)
        routing = request.topk_idx
        if request.topk_weights is not None:  # the caller may overwrite its own
            routing = routing.clone()
        else:  # an earlier dispatch's, perhaps of another stream
            place.keep(routing, stream)
    args = plan.args.take()
    fill(args, request, active, rows, raw)
    args.phase, args.stream = how.phase, place.handle(stream)
    args.peers_have_more = rows.counts.data_ptr() + rows.counts.element_size()
    small = rows.counts, rows.layout, routing
    given = request.x, request.topk_idx, request.topk_weights, request.active_ranks, *request.extra
    kept = gpu.keep((*given, *small), how, stream)
    operation = None
    try:
        op = gpu.launch_dispatch(args, stream)
        operation = Launched(runtime, gpu.streams, stream, captured, op, (request, rows, raw))
        plan.args.release(args)
        copies = rows.launched(operation.when_done)  # before the handle can be released
        handle = GpuFlatHandle(runtime, raw, operation, plan, rows, routing)
        handle._stream, handle._captured = stream, captured
        handle._answer = Answer(place, stream, rows.counts, 1)
        event, hook = gpu.completion(operation, how, stream, kept, (*small, *copies))
        return FlatReceived(handle, rows, event, hook)
    except BaseException:
        gpu.give_up(raw, stream, operation)
        raise


def combine(
    gpu: Any, handle: FlatHandle, request: flat_combine.Request, how: How
) -> tuple[torch.Tensor, EventOverlap, Hook | None]:
    """``Buffer.combine_flat``."""
    runtime, place, plan = gpu.runtime, gpu.place, handle._plan
    active = check.active_ranks(request.active_ranks, runtime.num_ranks, place)
    check.timeout(request.timeout_us)
    runtime.refuse_closed()
    num_rows = handle.num_recv_tokens
    check.outputs(request.y, plan.output_dtype, (num_rows, plan.hidden), "y", place)
    if not num_rows:  # there are no rows
        request = request._replace(zero_copy=False)
    stream, captured = gpu.streams.choose(how.async_finish)
    args = combine_args.take()
    flat_combine.fill(args, request, handle, active)
    args.x = args.x or handle._result.combine_x  # an empty tensor has no address
    args.phase, args.stream = how.phase, place.handle(stream)
    kept = gpu.keep((request.y, request.active_ranks, request.out), how, stream)
    op = gpu.launch(runtime.lib.buffer_combine, args, stream)
    args.stream = 0  # structs serve buffers on the CPU, too
    combine_args.release(args)
    handle._combined = True
    operation = Launched(runtime, gpu.streams, stream, captured, op, (request, handle))
    event, hook = gpu.completion(operation, how, stream, kept, (request.out,))
    return request.out, event, hook
