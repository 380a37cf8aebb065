"""A buffer's operations on the CPU: checked, begun, and driven by the caller's thread."""

from __future__ import annotations

import gc
from collections.abc import Callable
from ctypes import Structure
from typing import Any

import torch

from .. import _abi as abi
from .._base import check
from .._base.place import HOST
from .._ep import combine as _combine
from .._ep import dispatch as _dispatch
from .._ep import results, selections
from .._ep.engine import Ending, Engine, FlatResults, PackedResults
from .._ep.flat_results import FlatHandle, FlatRows
from .._native.plan import Plan, combine_args
from ..errors import BusyError
from ..event import AT_ONCE, EventOverlap, How, completion
from ..handle import Handle
from .operation import Operation, start

# Looked up once, not at every call.
_empty_like, _learns = torch.empty_like, torch.is_grad_enabled
_new_raw, _RESULT_BYTES = abi.mw_dispatch_result_t, abi.SIZE_OF[abi.mw_dispatch_result_t]
_DONE, _SENT = abi.MW_PHASE_DONE, abi.MW_PHASE_SENT


class Cpu(Engine):
    """Rows lie in memory of the host that the ranks share."""

    place = HOST
    quick = staticmethod(check.plain)
    drives = True

    def selections(
        self, topk_idx: torch.Tensor, topk_weights: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None, int]:
        return topk_idx, topk_weights, selections.flags(topk_idx, topk_weights)

    def dispatch(
        self,
        request: _dispatch.Request,
        how: How,
        copy: bool,
        wait_ns: torch.Tensor | None = None,
    ) -> tuple[Any, Ending]:
        plan = self.plan_of(request)
        active = check.active_ranks(request.active_ranks, self.num_ranks)
        outputs = _empty_like(plan.counts), _empty_like(plan.layout), _new_raw(_RESULT_BYTES)
        phase = _DONE if how is AT_ONCE else _SENT
        args = plan.args.take()
        _dispatch.fill(args, request, active, outputs, phase)
        operation = None
        try:
            operation = self._start(args, phase, (request, outputs))
            plan.args.release(args)
            receive = self._flat if plan.flat else self._packed
            # Autograd would save a view, and find other numbers in it later.
            copy = copy or (request.x.requires_grad and _learns())
            found: Any = receive(plan, request, outputs, operation, copy)
        except BaseException:
            self._give_up(outputs[2], operation)
            raise
        if how is AT_ONCE:
            return found, (EventOverlap(), None)
        handle = found[0] if plan.flat else found[2]
        return found, completion(handle, how, (request.x, request.topk_idx))

    def _start(
        self, args: abi.mw_dispatch_args_t, phase: int, borrowed: tuple[object, ...]
    ) -> Operation:
        call = self.lib.buffer_dispatch
        try:
            return start(self, call, args, phase, borrowed)
        except BusyError as refusal:
            self.held.make_room(args, refusal)
        return start(self, call, args, phase, borrowed)

    def _give_up(self, raw: abi.mw_dispatch_result_t, operation: Operation | None) -> None:
        """Releases a dispatch of which the caller got no handle: peers must not wait for it."""
        if operation is not None:
            operation.abandon()
        if raw.handle.id and not self.lib.forked:
            self.lib.handle_release(raw.handle)

    def _rows(self, raw: abi.mw_dispatch_result_t, plan: Plan) -> results.Rows:
        """Views of the workspace: made once per slab and plan, no copy."""
        mapping, key = self.mapping(raw), (raw.recv_x, plan)
        rows: results.Rows | None = mapping.find(key)
        if rows is None:
            rows = results.over_workspace(mapping.view, raw, plan)
            mapping.keep(key, rows)
        return rows

    def _packed(
        self,
        plan: Plan,
        request: _dispatch.Request,
        outputs: _dispatch.Outputs,
        operation: Operation,
        copy: bool,
    ) -> PackedResults:
        recv_count, layout, raw = outputs
        rows = self._rows(raw, plan)
        if copy:
            rows = results.copies(rows, recv_count, operation)
            recv_x, src_info = rows.recv_x, rows.src_info
        else:
            recv_x, src_info = rows.fresh()
        items = (src_info, layout, plan.num_max_tokens, plan.hidden, plan.num_experts)
        return recv_x, recv_count, Handle(items, self, raw, operation, plan, request.x.shape[0])

    def _flat(
        self,
        plan: Plan,
        request: _dispatch.Request,
        outputs: _dispatch.Outputs,
        operation: Operation,
        copy: bool,
    ) -> FlatResults:
        counts, layout, raw = outputs
        rows, routing = FlatRows(counts, layout), request.topk_idx
        if request.topk_weights is not None:
            # The caller may overwrite its own; a later dispatch may ask for this routing.
            routing = routing.clone()
        operation.when_done(lambda: rows.fill(self._rows(raw, plan), copy))
        return FlatHandle(self, raw, operation, plan, rows, routing), rows

    def combine(
        self,
        handle: Handle | FlatHandle,
        request: _combine.Request,
        how: How,
        wait_ns: torch.Tensor | None = None,
    ) -> Ending:
        active = self.ready(handle, request)
        phase = _DONE if how is AT_ONCE else _SENT
        args = combine_args.take()
        _combine.fill(args, request, handle, active, phase)
        operation = start(self, self.lib.buffer_combine, args, phase, (request, handle))
        combine_args.release(args)
        handle._combined = True
        return completion(operation, how, (request.x, request.out))

    def collective(
        self, function: Callable[..., int], args: Structure, borrowed: tuple[object, ...]
    ) -> None:
        try:
            start(self, function, args, _DONE, borrowed)
        except BusyError:
            gc.collect()  # a handle that only a cycle of objects keeps is garbage
            start(self, function, args, _DONE, borrowed)

    def combine_view(self, handle: Handle | FlatHandle, timeout_us: int) -> torch.Tensor:
        address = self.combine_buffer(handle._id, timeout_us)
        plan, mapping = handle._plan, self.mapping(handle._result)
        key = (address, plan)
        view: torch.Tensor | None = mapping.find(key)
        if view is None:
            view = mapping.view(address, plan.rows, plan.output_dtype)
            mapping.keep(key, view)
        return view.detach()
