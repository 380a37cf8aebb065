"""A buffer's operations on a CUDA device: checked and launched on a stream, never waited for."""

from __future__ import annotations

import ctypes
import threading
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from .. import _abi as abi
from .._base import check
from .._ep import combine as _combine
from .._ep import dispatch as _dispatch
from .._ep.results import RecvX, Rows, copies_on_stream
from .._native.memory import MAX_KEPT, Owner
from .._native.plan import combine_args
from ..errors import MoewireError
from ..event import EventOverlap, Hook, How, StreamEvent
from . import flat as _flat
from . import torch_cuda
from .handles import Answer, Answers, GpuHandle
from .listener import EventListener
from .operation import Launched
from .streams import Streams

if TYPE_CHECKING:
    from collections.abc import Callable

    from .._ep import flat_combine, flat_request
    from .._ep.flat_results import FlatHandle, FlatReceived
    from .._native.plan import Plan
    from .._native.runtime import Runtime
    from ..handle import Handle


_RESULT_BYTES = abi.SIZE_OF[abi.mw_dispatch_result_t]
_new_raw = abi.mw_dispatch_result_t  # looked up once, not at every call


class Gpu:
    """The part of a ``Runtime`` for rows on a CUDA device. Any thread may use it."""

    def __init__(self, runtime: Runtime, ordinal: int) -> None:
        self._runtime = runtime
        self.num_ranks = runtime.num_ranks
        self.place = torch_cuda.place(ordinal)
        self._quick = check.plain_on(self.place)
        self.streams = Streams(self.place)
        self._answers = Answers(self.place)
        self._views: OrderedDict[object, Any] = OrderedDict()
        self._lock = threading.Lock()
        self._owner: Owner | None = None
        self._listener = EventListener(runtime.events)

    @property
    def runtime(self) -> Runtime:
        """The runtime that the operations belong to."""
        return self._runtime

    def close(self) -> None:
        """Forgets every view; tensors that are still held keep the memory."""
        self._listener.stop()
        with self._lock:
            let_go = self._views, self._owner
            self._views, self._owner = OrderedDict(), None
        del let_go  # not under the lock: memory may go with it

    def dispatch(
        self,
        request: _dispatch.Request,
        how: How,
        copy_outputs: bool,
        wait_ns: torch.Tensor | None = None,
    ) -> tuple[RecvX, torch.Tensor, Handle, EventOverlap, Hook | None]:
        """``Buffer.dispatch``. ``wait_ns``: int64 [R], to which the device adds its waits."""
        runtime, place = self._runtime, self.place
        plan = self._plan(request)
        active = check.active_ranks(request.active_ranks, runtime.num_ranks, place)
        runtime.refuse_closed()
        stream, captured = self.streams.choose(how.async_finish)
        outputs, answer, more = self._outputs(plan, stream, captured, how)
        args = plan.args.take()
        _dispatch.fill(args, request, active, outputs)
        args.phase, args.stream = how.phase, place.handle(stream)
        args.peers_have_more = more
        args.wait_ns = _address(wait_ns)
        kept: tuple[torch.Tensor, ...] = ()
        if how.async_finish:
            small = (outputs[0], outputs[1], answer.words)
            kept = self.keep((*_tensors_of(request), *small, wait_ns), how, stream)
        operation = None
        try:
            op = self.launch_dispatch(args, stream)
            borrowed = (request, outputs, answer, wait_ns)
            operation = Launched(runtime, self.streams, stream, captured, op, borrowed)
            plan.args.release(args)
            results = plan, request, outputs, answer, captured
            return self._received(*results, operation, how, copy_outputs, kept)
        except BaseException:
            self.give_up(outputs[2], stream, operation)
            raise

    def _outputs(
        self, plan: Plan, stream: Any, captured: bool, how: How
    ) -> tuple[_dispatch.Outputs, Answer, int]:
        if not how.async_finish:
            return self._fresh(plan, stream, captured)
        with self.place.on(stream):  # so that memory is this stream's
            return self._fresh(plan, stream, captured)

    def _fresh(
        self, plan: Plan, stream: Any, captured: bool
    ) -> tuple[_dispatch.Outputs, Answer, int]:
        """The results of one dispatch, and the address of the answer's word."""
        templates, like = plan.templates, self.place.like
        counts, layout = self._templates(plan, captured) if templates is None else templates
        answer, more = self._answers.take(stream, captured)
        return (like(counts), like(layout), _new_raw(_RESULT_BYTES)), answer, more

    def _templates(self, plan: Plan, captured: bool) -> tuple[torch.Tensor, ...]:
        counts = self.place.empty((plan.num_local_experts,), torch.int32)
        shape = (plan.num_local_experts, self._runtime.num_ranks)
        made = counts, self.place.empty(shape, torch.int64)
        if not captured:  # captured ones would keep memory of that graph
            plan.templates = made
        return made

    def dispatch_flat(
        self, request: flat_request.Request, how: How, copy_outputs: bool
    ) -> FlatReceived:
        """``Buffer.dispatch_flat``."""
        return _flat.dispatch(self, request, how, copy_outputs)

    def combine_flat(
        self, handle: FlatHandle, request: flat_combine.Request, how: How
    ) -> tuple[torch.Tensor, EventOverlap, Hook | None]:
        """``Buffer.combine_flat``."""
        return _flat.combine(self, handle, request, how)

    def launch_dispatch(self, args: abi.mw_dispatch_args_t, stream: Any) -> abi.mw_op_t:
        """``launch`` of a dispatch, by the buffer's rule about operations that are held."""
        runtime = self._runtime
        call = runtime.lib.buffer_dispatch
        return runtime.held.dispatch(args, lambda: self.launch(call, args, stream))

    def launch(self, call: Callable[..., int], args: Any, stream: Any) -> abi.mw_op_t:
        op, streams = abi.mw_op_t(), self.streams
        with streams.lock:
            try:
                streams.begin(stream)
                self._runtime.check(call(self._runtime.id, args, op))
            finally:
                streams.end()
        return op

    def _received(
        self,
        plan: Plan,
        request: _dispatch.Request,
        outputs: _dispatch.Outputs,
        answer: Answer,
        captured: bool,
        operation: Launched,
        how: How,
        copy_outputs: bool,
        kept: tuple[torch.Tensor, ...],
    ) -> tuple[RecvX, torch.Tensor, Handle, EventOverlap, Hook | None]:
        recv_count, layout, raw = outputs
        stream = answer.stream
        made: tuple[torch.Tensor, ...] = (recv_count, layout)  # memory of the launch's stream
        rows = self._rows(raw, plan)
        if copy_outputs or (request.x.requires_grad and torch.is_grad_enabled()):
            with self.place.on(stream):
                recv_x, src_info = copies_on_stream(rows, operation.when_done)
            made += (*(recv_x if isinstance(recv_x, tuple) else (recv_x,)), src_info)
        else:
            recv_x, src_info = rows.fresh()
        items = (src_info, layout, plan.num_max_tokens, plan.hidden, plan.num_experts)
        handle = GpuHandle(items, self._runtime, raw, operation, plan, request.x.shape[0])
        handle._stream, handle._captured = stream, captured
        handle._answer = answer
        event, hook = self.completion(operation, how, stream, kept, made)
        return recv_x, recv_count, handle, event, hook

    def give_up(
        self, raw: abi.mw_dispatch_result_t, stream: Any, operation: Launched | None
    ) -> None:
        """Releases a dispatch of which the caller got no handle: peers must not wait for it."""
        if raw.handle.id and not (self._runtime.closed or self._runtime.lib.forked):
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
                return self._runtime.lib.handle_release_on(handle, self.place.handle(stream))
            finally:
                streams.end()

    def _plan(self, request: _dispatch.Request) -> Plan:
        plan = _dispatch.known_plan(self._runtime, request, self._quick)
        if plan is None:
            key = _dispatch.check_request(request, self._runtime.num_ranks, self.place)
            plan = self._runtime.plans.of(key)
        return plan

    def combine(
        self,
        handle: Handle,
        request: _combine.Request,
        how: How,
        wait_ns: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, EventOverlap, Hook | None]:
        """``Buffer.combine``; ``wait_ns`` as for ``dispatch``."""
        runtime, place = self._runtime, self.place
        _combine.check_request(request, handle, place, self._quick)
        active = check.active_ranks(request.active_ranks, runtime.num_ranks, place)
        runtime.refuse_closed()
        handle.finish()
        stream, captured = self.streams.choose(how.async_finish)
        args = combine_args.take()
        _combine.fill(args, request, handle, active)
        args.phase, args.stream = how.phase, place.handle(stream)
        args.wait_ns = _address(wait_ns)
        kept: tuple[torch.Tensor, ...] = ()
        if how.async_finish:
            kept = self.keep((*_tensors_of(request), request.out, wait_ns), how, stream)
        op = self.launch(runtime.lib.buffer_combine, args, stream)
        args.stream = args.wait_ns = 0  # structs serve buffers on the CPU, too
        combine_args.release(args)
        handle._combined = True
        borrowed = (request, handle, wait_ns)
        operation = Launched(runtime, self.streams, stream, captured, op, borrowed)
        event, hook = self.completion(operation, how, stream, kept, (request.out,))
        return request.out, event, hook

    def output(self, out: torch.Tensor | None, shape: tuple[int, int]) -> torch.Tensor:
        """The caller's ``out``, or a new tensor: bf16 [T, H]."""
        if out is None:
            return self.place.empty(shape, torch.bfloat16)
        check.tensor("out", out, torch.bfloat16, shape, self.place)
        return out

    def combine_buffer(self, handle: Handle | FlatHandle) -> torch.Tensor:
        """``Buffer.get_next_combine_buffer``."""
        address = self._unread(handle)
        owner, plan = self.own(handle._result), handle._plan
        return self.view(address, plan.rows, plan.output_dtype, owner).detach()

    def _unread(self, handle: Handle | FlatHandle) -> int:
        """Its address. Later work of the current stream comes after reads that are under way."""
        runtime, streams = self._runtime, self.streams
        if not handle._combined:  # nothing reads it
            return runtime.combine_buffer(handle._id, -1)
        address, stream = ctypes.c_uint64(), self.place.stream()
        with streams.lock:
            try:
                streams.begin(stream)
                on = self.place.handle(stream)
                call = runtime.lib.buffer_combine_buffer_on
                runtime.check(call(runtime.id, handle._id, on, ctypes.byref(address)))
            finally:
                streams.end()
        return address.value

    def keep(
        self, tensors: tuple[torch.Tensor | None, ...], how: How, stream: Any
    ) -> tuple[torch.Tensor, ...]:
        """Before a launch on the side stream: keeps tensors' memory until the stream has used it.

        This comes before the launch, because a step after it may fail, and then the launched work
        goes on all the same.
        """
        if not how.async_finish:
            return ()
        kept = tuple(tensor for tensor in tensors if tensor is not None)
        for tensor in kept:
            self.place.keep(tensor, stream)
        return kept

    def completion(
        self,
        operation: Launched,
        how: How,
        stream: Any,
        kept: tuple[torch.Tensor, ...],
        outputs: tuple[torch.Tensor, ...],
    ) -> tuple[EventOverlap, Hook | None]:
        """The event and the hook that a call returns; ``kept``: what ``keep`` returned."""
        hook = Hook(operation) if how.return_recv_hook else None
        if not how.async_finish:
            return EventOverlap(), hook
        for tensor in outputs:
            self.place.keep(tensor, self.place.stream())
        event = StreamEvent(self.place, stream, outputs)
        return EventOverlap(event, kept), hook

    def own(self, raw: abi.mw_dispatch_result_t) -> Owner:
        """Keeps the workspace in place for callers that make views of it and hold the owner.

        Another thread may close the buffer at any moment. Then each caller gets an owner of its
        own.
        """
        owner = self._owner
        return self._new_owner(raw) if owner is None else owner

    def _new_owner(self, raw: abi.mw_dispatch_result_t) -> Owner:
        try:
            made = Owner(self._runtime.lib, raw.memory.id)
        except MoewireError:
            self._runtime.refuse_closed()
            raise
        with self._lock:
            if self._owner is None and not self._runtime.closed:
                self._owner = made
        return made

    def _rows(self, raw: abi.mw_dispatch_result_t, plan: Plan) -> Rows:
        """Views of where a dispatch's rows are.

        Views of an earlier dispatch are used again only if every address and the plan, which has
        shapes and types, are the same: new views would be equal to them. They lie in the
        workspace, which the owner keeps in place as long as a view is kept here. Which rows they
        show depends on the slot, and ``fresh`` never returns the kept tensors themselves.
        """
        owner = self.own(raw)
        key = (raw.recv_x, raw.src_info, raw.recv_scales, plan)
        rows: Rows | None = self._views.get(key)
        if rows is None:
            rows = self._make_rows(raw, plan, owner)
            self._keep(key, rows)
        return rows

    def _make_rows(self, raw: abi.mw_dispatch_result_t, plan: Plan, owner: Owner) -> Rows:
        local, num_rows, hidden = plan.rows
        dtype = torch.float8_e4m3fn if plan.fp8 else torch.bfloat16
        data = self.view(raw.recv_x, plan.rows, dtype, owner)
        src_info = self.view(raw.src_info, (local, num_rows), torch.int32, owner)
        if not plan.fp8:
            return Rows(data, None, src_info)
        block = check.FP8_BLOCK * (check.UE8M0_PACK if plan.ue8m0 else 1)
        shape = (local, hidden // block, num_rows)
        kind = torch.int32 if plan.ue8m0 else torch.float32
        scales = self.view(raw.recv_scales, shape, kind, owner)
        return Rows(data, scales.transpose(1, 2), src_info)

    def view(
        self, address: int, shape: tuple[int, ...], dtype: torch.dtype, owner: Owner
    ) -> torch.Tensor:
        """A view, made once per place and shape; after ``close``, at every call.

        It holds its owner, which keeps the memory when the buffer is closed, too.
        """
        key = (address, shape, dtype)
        view: torch.Tensor | None = self._views.get(key)
        if view is None:
            view = self.place.view(address, shape, dtype, owner)
            self._keep(key, view)
        return view

    def _keep(self, key: object, made: Any) -> None:
        with self._lock:
            if self._owner is not None:
                self._views[key] = made
            while len(self._views) > 4 * MAX_KEPT:
                self._views.popitem(last=False)


def _tensors_of(
    request: _dispatch.Request | _combine.Request,
) -> tuple[torch.Tensor | None, ...]:
    return request.x, request.topk_idx, request.topk_weights, request.active_ranks


def _address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
