"""The arguments of a flat dispatch: checked, and put into one struct."""

from __future__ import annotations

from collections.abc import Iterable
from ctypes import addressof
from typing import TYPE_CHECKING, NamedTuple

import torch

from .. import _abi as abi
from .._base import check
from .._native.flat_plan import FORMAT_FLAGS, Extra, FlatPlan, row_bytes
from .._native.runtime import Runtime
from . import selections as _selections
from .flat_results import FlatRows

if TYPE_CHECKING:
    from .._base.place import Place


class Request(NamedTuple):
    """The arguments of ``dispatch_flat``."""

    x: torch.Tensor
    topk_idx: torch.Tensor
    topk_weights: torch.Tensor | None  # None: no routing
    extra: tuple[torch.Tensor, ...]
    active_ranks: torch.Tensor | None
    num_max_tokens: int
    num_experts: int
    timeout_us: int
    flags: int  # MW_DISPATCH_*
    phase: int


def several(extra: Iterable[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """``extra`` as a tuple. Refuses a single tensor: an iteration over it would yield its rows."""
    if isinstance(extra, torch.Tensor) or not isinstance(extra, Iterable):
        allowed = "a list or tuple of tensors"
        raise check.refuse("extra", f"a {type(extra).__name__}", allowed)
    return tuple(extra)


def checked_plan(runtime: Runtime, request: Request, place: Place | None = None) -> FlatPlan:
    """The plan, if every argument but ``active_ranks`` is right."""
    name = "num_max_dispatch_tokens_per_rank"
    num_max = check.integer(name, request.num_max_tokens, 1, check.MAX_TOKENS)
    experts = check.experts(request.num_experts, runtime.num_ranks)
    check.tensor("x", request.x, torch.bfloat16, (None, None), place)
    num_tokens, hidden = request.x.shape
    flags = request.flags
    fp8, ue8m0 = bool(flags & abi.MW_DISPATCH_FP8), bool(flags & abi.MW_DISPATCH_UE8M0)
    check.scales(fp8, bool(flags & abi.MW_DISPATCH_ROUND_SCALE), ue8m0)
    check.hidden(hidden, fp8, ue8m0)
    check.tokens(num_tokens, num_max)
    ids_dtype, weights_dtype = _selections.dtypes(flags)
    selections = (num_tokens, None)
    check.tensor("topk_idx", request.topk_idx, ids_dtype, selections, place, _selections.IDS)
    num_topk = request.topk_idx.shape[1]
    check.topk(num_topk)
    if not flags & abi.MW_DISPATCH_NO_ROUTING:
        shape = (num_tokens, num_topk)
        weights, allowed = request.topk_weights, _selections.WEIGHTS
        check.tensor("topk_weights", weights, weights_dtype, shape, place, allowed)
    check.timeout(request.timeout_us)
    extras = _extras(request.extra, num_tokens, place)
    key = (hidden, num_topk, num_max, experts, flags & FORMAT_FLAGS, extras)
    return runtime.flat_plans.of(key)


def _extras(
    given: tuple[torch.Tensor, ...], num_tokens: int, place: Place | None
) -> tuple[Extra, ...]:
    check.num_extras("extra", len(given))
    found = []
    for at, tensor in enumerate(given):
        name = f"extra[{at}]"
        check.along(name, tensor, num_tokens, place)
        found.append((tensor.dtype, tuple(tensor.shape[1:])))
        size = row_bytes(found[-1])
        if not 1 <= size <= abi.MW_MAX_EXTRA_BYTES:
            raise check.refuse(name, f"{size} bytes per token", f"1 to {abi.MW_MAX_EXTRA_BYTES}")
    return tuple(found)


def fill(
    args: abi.mw_dispatch_args_t,
    request: Request,
    active: tuple[int, int],
    rows: FlatRows,
    raw: abi.mw_dispatch_result_t,
) -> None:
    """Fills what differs from call to call; ``active``: address and length of ``active_ranks``."""
    weights = request.topk_weights
    args.flags = request.flags
    args.x = request.x.data_ptr()
    args.topk_idx = request.topk_idx.data_ptr()
    args.topk_weights = 0 if weights is None else weights.data_ptr()
    for at, tensor in enumerate(request.extra):
        args.extra[at] = tensor.data_ptr()
    args.num_tokens = request.x.shape[0]
    args.active_ranks, args.num_active_ranks = active
    args.timeout_us = request.timeout_us
    args.phase = request.phase
    args.recv_count = rows.counts.data_ptr()
    args.layout_range = rows.layout.data_ptr()
    args.result = addressof(raw)
