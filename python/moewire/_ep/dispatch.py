"""The arguments of a dispatch, packed or flat: checked, and put into one struct."""

from __future__ import annotations

from collections.abc import Iterable
from ctypes import addressof
from typing import NamedTuple, TypeAlias

import torch

from .. import _abi as abi
from .._base import check
from .._base.numbers import boolean
from .._base.place import Place
from .._native.plan import FORMAT_FLAGS, Extra, Key, Plan, Plans, row_bytes
from . import selections as _selections

# Looked up once, not at every call.
_FP8, _MORE, _ROUND, _UE8M0, _FP32_OUTPUTS = (
    abi.MW_DISPATCH_FP8,
    abi.MW_DISPATCH_HAS_MORE,
    abi.MW_DISPATCH_ROUND_SCALE,
    abi.MW_DISPATCH_UE8M0,
    abi.MW_DISPATCH_FP32_OUTPUTS,
)
_PRE, _FLAT = abi.MW_DISPATCH_PRE_REDUCE, abi.MW_DISPATCH_FLAT
# Flat without _FLAT_FORM's other bit takes weights; a packed dispatch takes them with _PRE.
_FLAT_FORM = _FLAT | abi.MW_DISPATCH_NO_ROUTING
_STORED = abi.MW_TOPK_IDX_INT32 | abi.MW_TOPK_WEIGHTS_BF16 | abi.MW_TOPK_WEIGHTS_FP16
_TIMEOUT_END = check.TIMEOUT_END
_BF16, _INT64, _FLOAT32 = torch.bfloat16, torch.int64, torch.float32


class Request(NamedTuple):
    """The arguments of ``Buffer.dispatch`` or ``dispatch_flat``."""

    x: torch.Tensor
    topk_idx: torch.Tensor
    active_ranks: torch.Tensor | None
    num_max_tokens: int
    num_experts: int
    timeout_us: int
    flags: int  # MW_DISPATCH_*
    topk_weights: torch.Tensor | None = None  # with MW_DISPATCH_PRE_REDUCE, or flat with routing
    extra: tuple[torch.Tensor, ...] = ()  # flat


def flags(
    fp8: object,
    more: object,
    round_scale: object,
    ue8m0: object,
    fp32: object,
    pre_reduce: object = False,
) -> int:
    """``MW_DISPATCH_*`` bits; raises for a value that is not a bool."""
    bits = 0  # "is not False" first: almost all are, at every call
    if fp8 is not False and boolean("use_fp8", fp8):
        bits = _FP8
    if fp32 is not False and boolean("fp32_outputs", fp32):
        bits |= _FP32_OUTPUTS
    if more is not False and boolean("more", more):
        bits |= _MORE
    if round_scale is not False and boolean("round_scale", round_scale):
        bits |= _ROUND
    if ue8m0 is not False and boolean("use_ue8m0", ue8m0):
        bits |= _UE8M0
    if pre_reduce is not False and boolean("pre_reduce", pre_reduce):
        bits |= _PRE
    return bits


# Small fresh objects that the library writes: recv_count, int32 [L], layout_range, int64 [L, R]
# (flat: [1] and [R]), and the rest. A bare tuple, because it is made at every call.
Outputs: TypeAlias = tuple[torch.Tensor, torch.Tensor, abi.mw_dispatch_result_t]


def several(extra: Iterable[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """``extra`` as a tuple. Refuses a single tensor: an iteration over it would yield its rows."""
    if isinstance(extra, torch.Tensor) or not isinstance(extra, Iterable):
        allowed = "a list or tuple of tensors"
        raise check.refuse("extra", f"a {type(extra).__name__}", allowed)
    return tuple(extra)


def known_plan(plans: Plans, request: Request, quick: check.Quick) -> Plan | None:
    """The plan of an earlier dispatch, if these arguments are certainly right.

    The quick way of ``check_request``, for almost every call. None means: check in detail.
    """
    x, topk_idx, _, num_max, num_experts, timeout_us, flags, weights, extra = request
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
    takes_weights = flags & _PRE or flags & _FLAT_FORM == _FLAT
    if extra or (weights is None) == bool(takes_weights):
        return None
    # 8.0 would find the plan for 8.
    if not (type(num_max) is type(num_experts) is type(timeout_us) is int):
        return None
    if not (num_tokens == selections[0] and num_tokens <= num_max):
        return None
    if not -1 <= timeout_us < _TIMEOUT_END:
        return None
    return plans.find((hidden, selections[1], num_max, num_experts, flags & FORMAT_FLAGS, ()))


def check_request(request: Request, num_ranks: int, place: Place) -> Key:
    """The key of the plan; raises if an argument is wrong."""
    num_max = check.tokens_per_rank(request.num_max_tokens)
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
    extra = _extra(request.extra, num_tokens, place)
    return hidden, num_topk, num_max, experts, request.flags & FORMAT_FLAGS, extra


def _check_weights(request: Request, dtype: torch.dtype, place: Place) -> None:
    """Checks that a dispatch has weights exactly when it takes them."""
    weights = request.topk_weights
    if not (request.flags & _PRE or request.flags & _FLAT_FORM == _FLAT):
        if weights is not None:
            raise check.refuse("topk_weights", "a tensor", "None without pre_reduce")
        return
    if weights is None and request.flags & _PRE:
        raise check.refuse("topk_weights", "None with pre_reduce", "a torch.Tensor")
    shape = tuple(request.topk_idx.shape)
    check.tensor("topk_weights", weights, dtype, shape, place, _selections.WEIGHTS)


def _extra(given: tuple[torch.Tensor, ...], num_tokens: int, place: Place) -> tuple[Extra, ...]:
    check.num_extras("extra", len(given))
    found = []
    for at, tensor in enumerate(given):
        name = f"extra[{at}]"
        check.along(name, tensor, num_tokens, place)
        found.append((tensor.dtype, tuple(tensor.shape[1:])))
        check.extra_row_bytes(f"bytes per token of {name}", row_bytes(found[-1]))
    return tuple(found)


def fill(
    args: abi.mw_dispatch_args_t,
    request: Request,
    active: tuple[int, int],
    outputs: Outputs,
    phase: int,
) -> None:
    """Fills what differs from call to call; ``active``: address and length of ``active_ranks``."""
    recv_count, layout_range, raw = outputs
    args.flags = request.flags
    args.x = request.x.data_ptr()
    args.topk_idx = request.topk_idx.data_ptr()
    args.num_tokens = request.x.shape[0]
    args.active_ranks, args.num_active_ranks = active
    args.timeout_us = request.timeout_us
    args.phase = phase
    weights = request.topk_weights  # set also to 0, because structs are used again
    args.topk_weights = 0 if weights is None else weights.data_ptr()
    if request.extra:
        for at, tensor in enumerate(request.extra):
            args.extra[at] = tensor.data_ptr()
    args.recv_count = recv_count.data_ptr()
    args.layout_range = layout_range.data_ptr()
    args.result = addressof(raw)
