"""One dispatch: check the arguments, fill one struct, make one call."""

from __future__ import annotations

from ctypes import pointer
from typing import NamedTuple

import torch

from . import _abi as abi
from . import _check, _results
from ._operation import Operation
from ._runtime import SLICE_US, Runtime
from .handle import Handle, Shape

_ARGS_BYTES = abi.SIZE_OF[abi.mw_dispatch_args_t]
_RESULT_BYTES = abi.SIZE_OF[abi.mw_dispatch_result_t]


class Request(NamedTuple):
    """The arguments of ``Buffer.dispatch``."""

    x: torch.Tensor
    topk_idx: torch.Tensor
    active_ranks: torch.Tensor | None
    num_max_tokens: int
    num_experts: int
    timeout_us: int
    fp8: bool
    more: bool
    phase: int
    round_scale: bool = False
    ue8m0: bool = False

    def flags(self) -> int:
        """``MW_DISPATCH_*`` bits."""
        return (
            (abi.MW_DISPATCH_FP8 if self.fp8 else 0)
            | (abi.MW_DISPATCH_MORE if self.more else 0)
            | (abi.MW_DISPATCH_ROUND_SCALE if self.round_scale else 0)
            | (abi.MW_DISPATCH_UE8M0 if self.ue8m0 else 0)
        )


class Outputs(NamedTuple):
    """Small fresh tensors that the library writes."""

    recv_count: torch.Tensor  # int32 [L]
    layout_range: torch.Tensor  # int64 [L, R]
    raw: abi.mw_dispatch_result_t

    @classmethod
    def allocate(cls, shape: Shape, num_ranks: int) -> Outputs:
        """Fresh ones for one dispatch."""
        local = shape.num_local_experts
        return cls(
            torch.empty((local,), dtype=torch.int32),
            torch.empty((local, num_ranks), dtype=torch.int64),
            abi.mw_dispatch_result_t(_RESULT_BYTES),
        )


def run(
    runtime: Runtime, request: Request, copy_outputs: bool
) -> tuple[_results.RecvX, torch.Tensor, Handle]:
    """Dispatches up to ``request.phase``; gives recv_x, recv_count and the handle."""
    shape = check_request(request, runtime.num_ranks)
    active = _check.active_ranks(request.active_ranks, runtime.num_ranks)
    runtime.refuse_closed()
    outputs = Outputs.allocate(shape, runtime.num_ranks)
    args = fill_args(request, shape, active, outputs)
    borrowed = (request.x, request.topk_idx, request.active_ranks, outputs)
    operation = Operation(runtime, borrowed)
    try:
        operation.start(runtime.lib.buffer_dispatch, args, request.phase)
        return _received(runtime, request, shape, outputs, operation, copy_outputs)
    except BaseException:
        operation.abandon()
        if outputs.raw.handle.id and not runtime.lib.forked:
            runtime.lib.handle_release(outputs.raw.handle)
        raise


def check_request(request: Request, num_ranks: int) -> Shape:
    """The sizes, if every argument but ``active_ranks`` is right."""
    name = "num_max_dispatch_tokens_per_rank"
    num_max = _check.integer(name, request.num_max_tokens, 1, _check.MAX_TOKENS)
    experts = _check.experts(request.num_experts, num_ranks)
    _check.tensor("x", request.x, torch.bfloat16, (None, None))
    num_tokens, hidden = request.x.shape
    _check.scales(request.fp8, request.round_scale, request.ue8m0)
    _check.hidden(hidden, request.fp8, request.ue8m0)
    _check.tokens(num_tokens, num_max)
    _check.tensor("topk_idx", request.topk_idx, torch.int64, (num_tokens, None))
    num_topk = request.topk_idx.shape[1]
    _check.topk(num_topk)
    _check.timeout(request.timeout_us)
    return Shape(num_tokens, num_topk, experts // num_ranks, num_ranks * num_max, hidden)


def fill_args(
    request: Request, shape: Shape, active: tuple[int, int], outputs: Outputs
) -> abi.mw_dispatch_args_t:
    """The one struct of the call; ``active`` is address and length of ``active_ranks``."""
    return abi.mw_dispatch_args_t(
        _ARGS_BYTES,
        request.flags(),
        request.x.data_ptr(),
        request.topk_idx.data_ptr(),
        shape.num_tokens,
        shape.hidden,
        shape.num_topk,
        request.num_max_tokens,
        request.num_experts,
        *active,
        request.timeout_us,
        SLICE_US,
        request.phase,
        0,
        outputs.recv_count.data_ptr(),
        outputs.layout_range.data_ptr(),
        pointer(outputs.raw),
    )


def _received(
    runtime: Runtime,
    request: Request,
    shape: Shape,
    outputs: Outputs,
    operation: Operation,
    copy_outputs: bool,
) -> tuple[_results.RecvX, torch.Tensor, Handle]:
    rows = _results.views(runtime, outputs.raw, shape, request.fp8, request.ue8m0)
    # Autograd would save a view, and find other numbers in it later.
    if copy_outputs or (request.x.requires_grad and torch.is_grad_enabled()):
        rows = _results.copies(rows, outputs.recv_count, operation)
    items = (
        rows.src_info,
        outputs.layout_range,
        int(request.num_max_tokens),
        shape.hidden,
        int(request.num_experts),
    )
    handle = Handle(items, runtime, outputs.raw, operation, shape)
    return rows.recv_x, outputs.recv_count, handle
