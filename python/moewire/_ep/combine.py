"""One combine: check the arguments, fill one struct, make one call."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from .. import _abi as abi
from .._base import check
from .._native.plan import combine_args
from .._native.runtime import Runtime
from ..handle import Handle
from . import selections as _selections
from .operation import Operation, start

if TYPE_CHECKING:
    from .._base.place import Place


class Request(NamedTuple):
    """The arguments of ``Buffer.combine``."""

    x: torch.Tensor
    topk_idx: torch.Tensor
    topk_weights: torch.Tensor
    active_ranks: torch.Tensor | None
    timeout_us: int
    zero_copy: bool
    out: torch.Tensor
    phase: int
    stored: int = 0  # MW_TOPK_*


def output(out: torch.Tensor | None, handle: Handle) -> torch.Tensor:
    """The caller's ``out``, or a new tensor: bf16 [T, H]."""
    shape = (handle._num_tokens, handle._plan.hidden)
    if out is None:
        return torch.empty(shape, dtype=torch.bfloat16, device="cpu")
    check.known("out", out, torch.bfloat16, shape)
    return out


def run(runtime: Runtime, handle: Handle, request: Request) -> Operation:
    """Combines up to ``request.phase``; runs the dispatch's hook if it has not run."""
    check_request(request, handle)
    active = check.active_ranks(request.active_ranks, runtime.num_ranks)
    runtime.refuse_closed()
    handle.finish()
    args = combine_args.take()
    fill(args, request, handle, active)
    operation = start(runtime, runtime.lib.buffer_combine, args, request.phase, (request, handle))
    combine_args.release(args)
    handle._combined = True
    return operation


def check_request(
    request: Request,
    handle: Handle,
    place: Place | None = None,
    quick: check.Quick = check.plain,
) -> None:
    """Raises if an argument other than ``active_ranks`` is wrong."""
    plan, weights = handle._plan, request.topk_weights
    selections = (handle._num_tokens, plan.num_topk)
    if not (quick(request.x, plan.output_dtype) and request.x.shape == plan.rows):
        check.outputs(request.x, plan.output_dtype, plan.rows, place=place)
    ids_dtype, weights_dtype = _selections.dtypes(request.stored)
    ids, allowed = request.topk_idx, _selections.IDS
    check.known("topk_idx", ids, ids_dtype, selections, place, quick, allowed)
    allowed = _selections.WEIGHTS
    check.known("topk_weights", weights, weights_dtype, selections, place, quick, allowed)
    check.timeout(request.timeout_us)


def fill(
    args: abi.mw_combine_args_t, request: Request, handle: Handle, active: tuple[int, int]
) -> None:
    """Fills all but the struct's size and the slice; ``active``: address and length."""
    args.flags = (abi.MW_COMBINE_ZERO_COPY if request.zero_copy else 0) | request.stored
    args.handle = handle._id
    args.x = request.x.data_ptr()
    args.topk_idx = request.topk_idx.data_ptr()
    args.topk_weights = request.topk_weights.data_ptr()
    args.out = request.out.data_ptr()
    args.num_tokens = handle._num_tokens
    args.num_topk = handle._plan.num_topk
    args.active_ranks, args.num_active_ranks = active
    args.timeout_us = request.timeout_us
    args.phase = request.phase
