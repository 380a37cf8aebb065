"""One combine: check the arguments, fill one struct, make one call."""

from __future__ import annotations

from typing import NamedTuple

import torch

from . import _abi as abi
from . import _check
from ._operation import Operation
from ._runtime import SLICE_US, Runtime
from .handle import Handle, Shape

_ARGS_BYTES = abi.SIZE_OF[abi.mw_combine_args_t]


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


def output(out: torch.Tensor | None, shape: Shape) -> torch.Tensor:
    """The caller's ``out``, or a new tensor: bf16 [T, H]."""
    if out is None:
        return torch.empty((shape.num_tokens, shape.hidden), dtype=torch.bfloat16)
    _check.tensor("out", out, torch.bfloat16, (shape.num_tokens, shape.hidden))
    return out


def run(runtime: Runtime, handle: Handle, request: Request) -> Operation:
    """Combines up to ``request.phase``; runs the dispatch's hook if it has not run."""
    shape = handle._shape
    _check_request(request, shape)
    active = _check.active_ranks(request.active_ranks, runtime.num_ranks)
    runtime.refuse_closed()
    handle.finish()
    args = _args(request, handle, active)
    operation = Operation(runtime, (request, handle))
    operation.start(runtime.lib.buffer_combine, args, request.phase)
    handle._combined = True
    return operation


def _check_request(request: Request, shape: Shape) -> None:
    rows = (shape.num_local_experts, shape.num_rows, shape.hidden)
    selections = (shape.num_tokens, shape.num_topk)
    _check.tensor("x", request.x, torch.bfloat16, rows)
    _check.tensor("topk_idx", request.topk_idx, torch.int64, selections)
    _check.tensor("topk_weights", request.topk_weights, torch.float32, selections)
    _check.timeout(request.timeout_us)


def _args(request: Request, handle: Handle, active: tuple[int, int]) -> abi.mw_combine_args_t:
    return abi.mw_combine_args_t(
        _ARGS_BYTES,
        abi.MW_COMBINE_ZERO_COPY if request.zero_copy else 0,
        handle._id,
        request.x.data_ptr(),
        request.topk_idx.data_ptr(),
        request.topk_weights.data_ptr(),
        request.out.data_ptr(),
        handle._shape.num_tokens,
        handle._shape.num_topk,
        *active,
        request.timeout_us,
        SLICE_US,
        request.phase,
        0,
    )
