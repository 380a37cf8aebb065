"""The arguments of a combine, packed or flat: checked, and put into one struct."""

from __future__ import annotations

from typing import NamedTuple

import torch

from .. import _abi as abi
from .._base import check
from .._base.place import Place
from ..handle import Handle
from . import selections
from .flat_results import FlatHandle


class Request(NamedTuple):
    """The arguments of ``Buffer.combine`` or ``combine_flat``."""

    x: torch.Tensor
    topk_idx: torch.Tensor | None  # None: flat
    topk_weights: torch.Tensor | None
    active_ranks: torch.Tensor | None
    timeout_us: int
    zero_copy: bool
    out: torch.Tensor
    stored: int = 0  # MW_TOPK_*


def check_request(
    request: Request, handle: Handle | FlatHandle, place: Place, quick: check.Quick
) -> None:
    """Raises if an argument is wrong that can be checked before the rows have come."""
    plan = handle._plan
    if not plan.flat:
        if not (quick(request.x, plan.output_dtype) and request.x.shape == plan.rows):
            check.outputs(request.x, plan.output_dtype, plan.rows, place=place)
        shape = (handle._num_tokens, plan.num_topk)
        ids_dtype, weights_dtype = selections.dtypes(request.stored)
        ids, weights, allowed = request.topk_idx, request.topk_weights, selections.WEIGHTS
        check.known("topk_idx", ids, ids_dtype, shape, place, quick, selections.IDS)
        check.known("topk_weights", weights, weights_dtype, shape, place, quick, allowed)
    check.timeout(request.timeout_us)


def check_rows(request: Request, handle: FlatHandle, place: Place) -> None:
    """Raises if there is not one row for each flat row that came. On CUDA it waits for those."""
    plan = handle._plan
    shape = (handle.num_recv_tokens, plan.hidden)
    check.outputs(request.x, plan.output_dtype, shape, "y", place)


def fill(
    args: abi.mw_combine_args_t,
    request: Request,
    handle: Handle | FlatHandle,
    active: tuple[int, int],
    phase: int,
) -> None:
    """Fills all but the struct's size and the slice; ``active``: address and length."""
    ids, weights = request.topk_idx, request.topk_weights
    flags = (abi.MW_COMBINE_ZERO_COPY if request.zero_copy else 0) | request.stored
    args.flags = flags | (abi.MW_COMBINE_FLAT if ids is None else 0)
    args.handle = handle._id
    args.x = request.x.data_ptr()
    args.topk_idx = 0 if ids is None else ids.data_ptr()
    args.topk_weights = 0 if weights is None else weights.data_ptr()
    args.out = request.out.data_ptr()
    args.num_tokens = handle._num_tokens
    args.num_topk = 0 if ids is None else handle._plan.num_topk
    args.active_ranks, args.num_active_ranks = active
    args.timeout_us = request.timeout_us
    args.phase = phase
