"""One dispatch: check the arguments, complete one struct, make one call."""

from __future__ import annotations

from ctypes import addressof
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch

from .. import _abi as abi
from .._base import check
from .._base.numbers import boolean
from .._native.plan import FORMAT_FLAGS, Key, Plan
from .._native.runtime import Runtime
from ..handle import Handle
from . import results
from . import selections as _selections
from .operation import Operation, start_dispatch

if TYPE_CHECKING:
    from .._base.place import Place

_RESULT_BYTES = abi.SIZE_OF[abi.mw_dispatch_result_t]
# Looked up once, not at every call.
_FP8, _MORE, _ROUND, _UE8M0, _WIDE = (
    abi.MW_DISPATCH_FP8,
    abi.MW_DISPATCH_HAS_MORE,
    abi.MW_DISPATCH_ROUND_SCALE,
    abi.MW_DISPATCH_UE8M0,
    abi.MW_DISPATCH_FP32_OUTPUTS,
)
_PRE = abi.MW_DISPATCH_PRE_REDUCE
_STORED = abi.MW_TOPK_IDX_INT32 | abi.MW_TOPK_WEIGHTS_BF16 | abi.MW_TOPK_WEIGHTS_FP16
_TIMEOUT_END = check.TIMEOUT_END
_plain, _new_raw = check.plain, abi.mw_dispatch_result_t
_BF16, _INT64, _FLOAT32 = torch.bfloat16, torch.int64, torch.float32
_empty_like = torch.empty_like


class Request(NamedTuple):
    """The arguments of ``Buffer.dispatch``."""

    x: torch.Tensor
    topk_idx: torch.Tensor
    active_ranks: torch.Tensor | None
    num_max_tokens: int
    num_experts: int
    timeout_us: int
    flags: int  # MW_DISPATCH_*
    phase: int
    topk_weights: torch.Tensor | None = None  # with MW_DISPATCH_PRE_REDUCE


def flags(fp8: object, more: object, round_scale: object, ue8m0: object, fp32: object) -> int:
    """``MW_DISPATCH_*`` bits; raises for a value that is not a bool."""
    bits = 0  # "is not False" first: almost all are, at every call
    if fp8 is not False and boolean("use_fp8", fp8):
        bits = _FP8
    if fp32 is not False and boolean("fp32_outputs", fp32):
        bits |= _WIDE
    if more is not False and boolean("more", more):
        bits |= _MORE
    if round_scale is not False and boolean("round_scale", round_scale):
        bits |= _ROUND
    if ue8m0 is not False and boolean("use_ue8m0", ue8m0):
        bits |= _UE8M0
    return bits


# Small fresh objects that the library writes: recv_count, int32 [L], layout_range, int64 [L, R],
# and the rest. A bare tuple, because it is made at every call.
Outputs: TypeAlias = tuple[torch.Tensor, torch.Tensor, abi.mw_dispatch_result_t]


def outputs_for(plan: Plan) -> Outputs:
    """Fresh outputs for one dispatch."""
    raw = _new_raw(_RESULT_BYTES)
    return _empty_like(plan.counts), _empty_like(plan.layout), raw


def run(
    runtime: Runtime, request: Request, copy_outputs: bool
) -> tuple[results.RecvX, torch.Tensor, Handle]:
    """Dispatches up to ``request.phase``; gives recv_x, recv_count and the handle."""
    plan = checked_plan(runtime, request)
    active = check.active_ranks(request.active_ranks, runtime.num_ranks)
    outputs = outputs_for(plan)
    args = plan.args.take()
    fill(args, request, active, outputs)
    operation = None
    try:
        operation = start_dispatch(runtime, args, request.phase, (request, outputs))
        plan.args.release(args)
        return _received(runtime, plan, request, outputs, operation, copy_outputs)
    except BaseException:
        if operation is not None:
            operation.abandon()
        raw = outputs[2]
        if raw.handle.id and not runtime.lib.forked:
            runtime.lib.handle_release(raw.handle)
        raise


def checked_plan(runtime: Runtime, request: Request) -> Plan:
    """The plan, if every argument but ``active_ranks`` is right."""
    plan = known_plan(runtime, request)
    if plan is None:
        plan = runtime.plans.of(check_request(request, runtime.num_ranks))
    runtime.refuse_closed()
    return plan


def known_plan(runtime: Runtime, request: Request, quick: check.Quick = _plain) -> Plan | None:
    """The plan of an earlier dispatch, if these arguments are certainly right.

    The quick way of ``check_request``, for almost every call. None means: check in detail.
    """
    x, topk_idx, _, num_max, num_experts, timeout_us, flags, _, weights = request
    ids_dtype, weights_dtype = _INT64, _FLOAT32
    if flags & _STORED:
        ids_dtype, weights_dtype = _selections.dtypes(flags)
    if not (quick(x, _BF16) and quick(topk_idx, ids_dtype)):
        return None
    given, selections = x.shape, topk_idx.shape
    if len(given) != 2 or len(selections) != 2:
        return None
    num_tokens, hidden = given
    if weights is not None and not (quick(weights, weights_dtype) and weights.shape == selections):
        return None
    if (weights is None) == bool(flags & _PRE):
        return None
    # 8.0 would find the plan for 8.
    if not (type(num_max) is type(num_experts) is type(timeout_us) is int):
        return None
    if not (num_tokens == selections[0] and num_tokens <= num_max):
        return None
    if not -1 <= timeout_us < _TIMEOUT_END:
        return None
    return runtime.plans.find((hidden, selections[1], num_max, num_experts, flags & FORMAT_FLAGS))


def check_request(request: Request, num_ranks: int, place: Place | None = None) -> Key:
    """The key of the plan; raises if an argument is wrong."""
    name = "num_max_dispatch_tokens_per_rank"
    num_max = check.integer(name, request.num_max_tokens, 1, check.MAX_TOKENS)
    experts = check.experts(request.num_experts, num_ranks)
    check.tensor("x", request.x, torch.bfloat16, (None, None), place)
    num_tokens, hidden = request.x.shape
    ids_dtype, weights_dtype = _selections.dtypes(request.flags)
    fp8, ue8m0 = bool(request.flags & _FP8), bool(request.flags & _UE8M0)
    check.scales(fp8, bool(request.flags & _ROUND), ue8m0)
    check.hidden(hidden, fp8, ue8m0)
    check.tokens(num_tokens, num_max)
    ids, selections = request.topk_idx, (num_tokens, None)
    check.tensor("topk_idx", ids, ids_dtype, selections, place, _selections.IDS)
    num_topk = request.topk_idx.shape[1]
    check.topk(num_topk)
    _check_weights(request, weights_dtype, place)
    check.timeout(request.timeout_us)
    return hidden, num_topk, num_max, experts, request.flags & FORMAT_FLAGS


def _check_weights(request: Request, dtype: torch.dtype, place: Place | None) -> None:
    """Checks that a dispatch has weights exactly when it is pre-reduced."""
    weights = request.topk_weights
    if not request.flags & _PRE:
        if weights is not None:
            raise check.refuse("topk_weights", "a tensor", "None without pre_reduce")
        return
    if weights is None:
        raise check.refuse("topk_weights", "None with pre_reduce", "a torch.Tensor")
    shape = tuple(request.topk_idx.shape)
    check.tensor("topk_weights", weights, dtype, shape, place, _selections.WEIGHTS)


def fill(
    args: abi.mw_dispatch_args_t, request: Request, active: tuple[int, int], outputs: Outputs
) -> None:
    """Fills what differs from call to call; ``active``: address and length of ``active_ranks``."""
    recv_count, layout_range, raw = outputs
    args.flags = request.flags
    args.x = request.x.data_ptr()
    args.topk_idx = request.topk_idx.data_ptr()
    args.num_tokens = request.x.shape[0]
    args.active_ranks, args.num_active_ranks = active
    args.timeout_us = request.timeout_us
    args.phase = request.phase
    weights = request.topk_weights  # set also to 0, because structs are used again
    args.topk_weights = 0 if weights is None else weights.data_ptr()
    args.recv_count = recv_count.data_ptr()
    args.layout_range = layout_range.data_ptr()
    args.result = addressof(raw)


def _received(
    runtime: Runtime,
    plan: Plan,
    request: Request,
    outputs: Outputs,
    operation: Operation,
    copy_outputs: bool,
) -> tuple[results.RecvX, torch.Tensor, Handle]:
    recv_count, layout_range, raw = outputs
    rows = results.views(runtime.mapping(raw), raw, plan)
    # Autograd would save a view, and find other numbers in it later.
    if copy_outputs or (request.x.requires_grad and torch.is_grad_enabled()):
        recv_x, src_info = results.copies(rows, recv_count, operation)
    else:
        recv_x, src_info = rows.fresh()
    items = (src_info, layout_range, plan.num_max_tokens, plan.hidden, plan.num_experts)
    handle = Handle(items, runtime, raw, operation, plan, request.x.shape[0])
    return recv_x, recv_count, handle
