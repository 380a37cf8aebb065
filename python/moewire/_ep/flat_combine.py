"""One flat combine: check the arguments, fill one struct, make one call."""

from __future__ import annotations

from typing import NamedTuple

import torch

from .. import _abi as abi
from .._base import check
from .._native.plan import combine_args
from .._native.runtime import Runtime
from .flat_results import FlatHandle
from .operation import Operation, start


class Request(NamedTuple):
    """The arguments of ``combine_flat``."""

    y: torch.Tensor
    active_ranks: torch.Tensor | None
    timeout_us: int
    zero_copy: bool
    out: torch.Tensor
    phase: int


def output(out: torch.Tensor | None, handle: FlatHandle) -> torch.Tensor:
    """The caller's ``out``, or a new tensor: bf16 [T, H]."""
    shape = (handle._num_tokens, handle._plan.hidden)
    if out is None:
        return torch.empty(shape, dtype=torch.bfloat16, device="cpu")
    check.known("out", out, torch.bfloat16, shape)
    return out


def run(runtime: Runtime, handle: FlatHandle, request: Request) -> Operation:
    """Combines up to ``request.phase``; runs the dispatch's hook if it has not run."""
    active = check.active_ranks(request.active_ranks, runtime.num_ranks)
    check.timeout(request.timeout_us)
    runtime.refuse_closed()
    handle.finish()
    plan = handle._plan
    check.outputs(request.y, plan.output_dtype, (handle.num_recv_tokens, plan.hidden), "y")
    args = combine_args.take()
    fill(args, request, handle, active)
    operation = start(runtime, runtime.lib.buffer_combine, args, request.phase, (request, handle))
    combine_args.release(args)
    handle._combined = True
    return operation


def fill(
    args: abi.mw_combine_args_t, request: Request, handle: FlatHandle, active: tuple[int, int]
) -> None:
    """Fills all but the struct's size and the slice; ``active``: address and length."""
    args.flags = abi.MW_COMBINE_FLAT | (abi.MW_COMBINE_ZERO_COPY if request.zero_copy else 0)
    args.handle = handle._id
    args.x = request.y.data_ptr()
    args.topk_idx = args.topk_weights = args.num_topk = 0
    args.out = request.out.data_ptr()
    args.num_tokens = handle._num_tokens
    args.active_ranks, args.num_active_ranks = active
    args.timeout_us = request.timeout_us
    args.phase = request.phase
