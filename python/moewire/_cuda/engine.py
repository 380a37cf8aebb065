"""A buffer's operations on a CUDA device: checked and launched on a stream.

Only collectives over routings are waited for: see ``collective.py``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import Structure
from functools import partial
from typing import Any, NamedTuple

import torch

from .. import _abi as abi
from .._base import check
from .._base.place import Place
from .._ep import combine as _combine
from .._ep import dispatch as _dispatch
from .._ep import results, selections
from .._ep.engine import Ending, Engine, FlatResults, PackedResults
from .._ep.flat_results import FlatHandle
from .._native import leaked
from .._native.plan import Plan, combine_args
from ..errors import BusyError, UnsupportedError
from ..event import EventOverlap, Hook, How, StreamEvent
from ..handle import Handle
from . import torch_cuda
from .collective import Collectives
from .flat_rows import GpuFlatRows
from .handles import Answer, Answers, GpuFlatHandle, GpuHandle
from .listener import EventListener
from .operation import Launched
from .streams import Streams
from .views import Views

Tensors = tuple[torch.Tensor, ...]
# Looked up once, not at every call.
_new_raw, _RESULT_BYTES = abi.mw_dispatch_result_t, abi.SIZE_OF[abi.mw_dispatch_result_t]


class _Begun(NamedTuple):
    """One dispatch that was launched."""

    plan: Plan
    request: _dispatch.Request
    routing: torch.Tensor
    outputs: _dispatch.Outputs
    answer: Answer
    captured: bool
    operation: Launched
    copy: bool


class Cuda(Engine):
    """Rows lie in memory of a device. The library launches, and tells no numbers."""

    drives = False

    def __init__(self, overwrites_held: bool, **config: Any) -> None:
        super().__init__(overwrites_held, **config)
        try:
            self._use(torch_cuda.place(config["tuning"]["device_ordinal"]))
        except BaseException:
            self.abandon()
            raise

    def _use(self, place: Place) -> None:
        self.place = place
        self.quick = check.plain_on(place)
        self.streams = Streams(place)
        self._collectives = Collectives(self, self.streams)
        self._answers = Answers(place)
        self.views = Views(self, place)
        self._to_forget += [EventListener(self.events).stop, self.views.close]

    def _close(self) -> None:
        self.events.look()
        super()._close()
        leaked.retry()

    def may_lead(self) -> None:
        if self.place.recording():
            raise UnsupportedError(
                "the current stream is captured into a graph: routings, scatter and gather wait on "
                "the host, so call them before or after the capture"
            )

    def collective(
        self, function: Callable[..., int], args: Structure, borrowed: tuple[object, ...]
    ) -> None:
        self._collectives.run(function, args, borrowed)

    def side_stream(self) -> Any:
        return self.streams.side()

    def selections(
        self, topk_idx: torch.Tensor, topk_weights: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None, int]:
        return *selections.widened(topk_idx, topk_weights, self.place), 0

    def dispatch(
        self,
        request: _dispatch.Request,
        how: How,
        copy: bool,
        wait_ns: torch.Tensor | None = None,
    ) -> tuple[Any, Ending]:
        place, plan = self.place, self.plan_of(request)
        active = check.active_ranks(request.active_ranks, self.num_ranks, place)
        self.refuse_closed()
        stream, captured = self.streams.choose(how.async_finish)
        if how.async_finish:
            with place.on(stream):  # so that memory is this stream's
                outputs, answer, more, routing = self._fresh(plan, request, stream, captured)
        else:
            outputs, answer, more, routing = self._fresh(plan, request, stream, captured)
        args = plan.args.take()
        _dispatch.fill(args, request, active, outputs, _phase(how))
        args.stream, args.peers_have_more = place.handle(stream), more
        args.wait_ns = _address(wait_ns)
        kept: Tensors = ()
        if how.async_finish:
            kept = self._keep((*_given(request), *outputs[:2], answer.words, wait_ns), stream)
        operation = None
        try:
            op = self._launch_dispatch(args, stream)
            borrowed = (request, outputs, answer, wait_ns)
            operation = Launched(self, self.streams, stream, captured, op, borrowed)
            plan.args.release(args)
            copy = copy or (request.x.requires_grad and torch.is_grad_enabled())
            begun = _Begun(plan, request, routing, outputs, answer, captured, operation, copy)
            found, made = self._flat(begun) if plan.flat else self._packed(begun)
            return found, self._completion(operation, how, stream, kept, made)
        except BaseException:
            self._give_up(outputs[2], stream, operation)
            raise

    def _fresh(
        self, plan: Plan, request: _dispatch.Request, stream: Any, captured: bool
    ) -> tuple[_dispatch.Outputs, Answer, int, torch.Tensor]:
        """The results of one dispatch, the answer and the address of its word, and the routing."""
        counts, layout = plan.templates or self._templates(plan, captured)
        like, routing = self.place.like, request.topk_idx
        if plan.has_routing:  # the caller may overwrite its own
            routing = routing.clone()
        elif plan.flat:  # an earlier dispatch's, perhaps of another stream
            self.place.keep(routing, stream)
        answer, more = self._answers.take(stream, captured)
        return (like(counts), like(layout), _new_raw(_RESULT_BYTES)), answer, more, routing

    def _templates(self, plan: Plan, captured: bool) -> tuple[torch.Tensor, torch.Tensor]:
        host = plan.counts, plan.layout
        counts, layout = (self.place.empty(tuple(one.shape), one.dtype) for one in host)
        if not captured:  # captured ones would keep memory of that graph
            plan.templates = counts, layout
        return counts, layout

    def _packed(self, begun: _Begun) -> tuple[PackedResults, Tensors]:
        recv_count, layout, raw = begun.outputs
        plan, operation, answer = begun.plan, begun.operation, begun.answer
        rows, made = self.views.rows(raw, plan), (recv_count, layout)  # of the launch's stream
        if begun.copy:
            with self.place.on(answer.stream):
                rows = results.copies_of_all(rows, operation.when_done)
            recv_x, src_info = rows.recv_x, rows.src_info
            made += tuple(rows.parts())
        else:
            recv_x, src_info = rows.fresh()
        items = (src_info, layout, plan.num_max_tokens, plan.hidden, plan.num_experts)
        handle = GpuHandle(items, self, raw, operation, plan, begun.request.x.shape[0])
        return (recv_x, recv_count, self._on_stream(handle, begun)), made

    def _flat(self, begun: _Begun) -> tuple[FlatResults, Tensors]:
        counts, layout, raw = begun.outputs
        plan, operation, stream = begun.plan, begun.operation, begun.answer.stream
        rows = GpuFlatRows(self.place, self.views, plan, begun.outputs, stream, begun.captured)
        # Before the handle can be released.
        copied = rows.launched(begun.copy, operation.when_done)
        handle = GpuFlatHandle(self, raw, operation, plan, rows, begun.routing)
        made = (counts, layout, begun.routing, *copied)
        return (self._on_stream(handle, begun), rows), made

    def _on_stream(self, handle: Any, begun: _Begun) -> Any:
        handle._stream, handle._captured = begun.answer.stream, begun.captured
        handle._answer, handle._release_on = begun.answer, self.release
        return handle

    def _launch_dispatch(self, args: abi.mw_dispatch_args_t, stream: Any) -> abi.mw_op_t:
        try:
            return self._launch(self.lib.buffer_dispatch, args, stream)
        except BusyError as refusal:
            self.held.make_room(args, refusal)
        return self._launch(self.lib.buffer_dispatch, args, stream)

    def _launch(self, call: Callable[..., int], args: Any, stream: Any) -> abi.mw_op_t:
        op, streams = abi.mw_op_t(), self.streams
        with streams.lock:
            try:
                streams.begin(stream)
                self.check(call(self.id, args, op))
            finally:
                streams.end()
        return op

    def _give_up(
        self, raw: abi.mw_dispatch_result_t, stream: Any, operation: Launched | None
    ) -> None:
        """Releases a dispatch of which the caller got no handle: peers must not wait for it."""
        if raw.handle.id and not (self.closed or self.lib.forked):
            self.release(raw.handle, stream)
        if operation is not None:
            operation.abandon()

    def release(self, handle: abi.mw_handle_t, stream: Any) -> int:
        """Gives a handle back on a stream, behind the last operation. A status."""
        streams = self.streams
        with streams.lock:
            if streams.launching:
                streams.put_off(partial(self.release, handle, stream))
                return abi.MW_OK
            try:
                streams.begin(stream)
                return self.lib.handle_release_on(handle, self.place.handle(stream))
            finally:
                streams.end()

    def combine(
        self,
        handle: Handle | FlatHandle,
        request: _combine.Request,
        how: How,
        wait_ns: torch.Tensor | None = None,
    ) -> Ending:
        active = self.ready(handle, request)
        stream, captured = self.streams.choose(how.async_finish)
        args = combine_args.take()
        _combine.fill(args, request, handle, active, _phase(how))
        if not args.x:  # there are no rows: an empty tensor has no address
            args.x = handle._result.combine_x
            args.flags &= ~abi.MW_COMBINE_ZERO_COPY
        args.stream, args.wait_ns = self.place.handle(stream), _address(wait_ns)
        kept: Tensors = ()
        if how.async_finish:
            kept = self._keep((*_given(request), request.out, wait_ns), stream)
        op = self._launch(self.lib.buffer_combine, args, stream)
        args.stream = args.wait_ns = 0  # structs serve buffers on the CPU, too
        combine_args.release(args)
        handle._combined = True
        borrowed = (request, handle, wait_ns)
        operation = Launched(self, self.streams, stream, captured, op, borrowed)
        return self._completion(operation, how, stream, kept, (request.out,))

    def combine_view(self, handle: Handle | FlatHandle, timeout_us: int) -> torch.Tensor:
        """All rows of a handle's combine buffer; the current stream waits for reads of it."""
        address = self._unread(handle)
        owner, plan = self.views.own(handle._result), handle._plan
        return self.views.view(address, plan.rows, plan.output_dtype, owner).detach()

    def _unread(self, handle: Handle | FlatHandle) -> int:
        """Its address. Later work of the current stream comes after reads that are under way."""
        if not handle._combined:  # nothing reads it
            return self.combine_buffer(handle._id, -1)
        address, stream, streams = ctypes.c_uint64(), self.place.stream(), self.streams
        with streams.lock:
            try:
                streams.begin(stream)
                on = self.place.handle(stream)
                call = self.lib.buffer_combine_buffer_on
                self.check(call(self.id, handle._id, on, ctypes.byref(address)))
            finally:
                streams.end()
        return address.value

    def _keep(self, tensors: tuple[torch.Tensor | None, ...], stream: Any) -> Tensors:
        """Before a launch on the side stream: keeps tensors' memory until the stream has used it.

        This comes before the launch, because a step after it may fail, and then the launched work
        goes on all the same.
        """
        kept = tuple(tensor for tensor in tensors if tensor is not None)
        for tensor in kept:
            self.place.keep(tensor, stream)
        return kept

    def _completion(
        self, operation: Launched, how: How, stream: Any, kept: Tensors, outputs: Tensors
    ) -> Ending:
        """The event and the hook that a call returns; ``kept``: what ``_keep`` returned."""
        hook = Hook(operation) if how.return_recv_hook else None
        if not how.async_finish:
            return EventOverlap(), hook
        for tensor in outputs:
            self.place.keep(tensor, self.place.stream())
        event = StreamEvent(self.place, stream, outputs)
        return EventOverlap(event, kept), hook


def _phase(how: How) -> int:
    """An event is recorded behind everything, so only a hook leaves something."""
    return abi.MW_PHASE_SENT if how.return_recv_hook else abi.MW_PHASE_DONE


def _given(
    request: _dispatch.Request | _combine.Request,
) -> tuple[torch.Tensor | None, ...]:
    given = request.x, request.topk_idx, request.topk_weights, request.active_ranks
    return (*given, *request.extra) if isinstance(request, _dispatch.Request) else given


def _address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
