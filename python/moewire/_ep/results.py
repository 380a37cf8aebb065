"""What a dispatch received, as tensors: views of the workspace, or copies."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

import torch

from .. import _abi as abi
from .._base.check import FP8_BLOCK, UE8M0_PACK
from .._native.flat_plan import FlatPlan
from .._native.memory import Mapping
from .._native.plan import Plan
from .operation import Operation

RecvX: TypeAlias = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


class Rows(NamedTuple):
    """Received rows; everything from ``recv_count[l]`` on is undefined."""

    data: torch.Tensor  # bf16 or float8_e4m3fn [L, R*M, H]
    # Token stride 1: float32 [L, R*M, H/128], or int32 [L, R*M, H/512] of UE8M0; None for bf16.
    scales: torch.Tensor | None
    src_info: torch.Tensor  # int32 [L, R*M]

    def fresh(self) -> tuple[RecvX, torch.Tensor]:
        """recv_x and src_info over the same memory, as new tensors.

        If a caller changes a tensor object, for example by requires_grad_(), no other sees it.
        """
        data, scales, src_info = self
        if scales is None:
            return data.detach(), src_info.detach()
        return (data.detach(), scales.detach()), src_info.detach()


def views(mapping: Mapping, raw: abi.mw_dispatch_result_t, plan: Plan) -> Rows:
    """Views of the workspace: made once per slab and plan, no copy."""
    key = (raw.recv_x, plan)
    rows: Rows | None = mapping.find(key)
    if rows is None:
        rows = _make(mapping, raw, plan)
        mapping.keep(key, rows)
    return rows


def _make(mapping: Mapping, raw: abi.mw_dispatch_result_t, plan: Plan) -> Rows:
    local, num_rows, hidden = plan.rows
    dtype = torch.float8_e4m3fn if plan.fp8 else torch.bfloat16
    data = mapping.view(raw.recv_x, plan.rows, dtype)
    src_info = mapping.view(raw.src_info, (local, num_rows), torch.int32)
    if not plan.fp8:
        return Rows(data, None, src_info)
    # Contiguous as [L, H/128, R*M]; upstream returns the transposed view.
    words = hidden // (FP8_BLOCK * UE8M0_PACK if plan.ue8m0 else FP8_BLOCK)
    kind = torch.int32 if plan.ue8m0 else torch.float32
    scales = mapping.view(raw.recv_scales, (local, words, num_rows), kind)
    return Rows(data, scales.transpose(1, 2), src_info)


def combine_view(mapping: Mapping, address: int, plan: Plan | FlatPlan) -> torch.Tensor:
    """The combine buffer at ``address``: bf16 or float32 [L, R*M, H], flat [R*M, H]."""
    key = (address, plan)
    view: torch.Tensor | None = mapping.find(key)
    if view is None:
        view = mapping.view(address, plan.rows, plan.output_dtype)
        mapping.keep(key, view)
    return view.detach()


def copies(
    source: Rows, recv_count: torch.Tensor, operation: Operation
) -> tuple[RecvX, torch.Tensor]:
    """Ordinary tensors, filled with the valid rows when the operation is done."""
    scales = None if source.scales is None else torch.empty_like(source.scales)
    target = Rows(torch.empty_like(source.data), scales, torch.empty_like(source.src_info))
    operation.when_done(partial(_copy, source, target, recv_count))
    return (target.data if scales is None else (target.data, scales)), target.src_info


def copies_on_stream(
    source: Rows, when_done: Callable[[Callable[[], None]], None]
) -> tuple[RecvX, torch.Tensor]:
    """Ordinary tensors on the device of ``source``, with all rows: the host knows no counts."""
    parts = [part for part in source if part is not None]
    copied = [torch.empty_like(part) for part in parts]

    def copy() -> None:
        for to, part in zip(copied, parts, strict=True):
            to.copy_(part)

    when_done(copy)
    data, *scales, src_info = copied
    return (data, scales[0]) if scales else data, src_info


def _copy(source: Rows, target: Rows, recv_count: torch.Tensor) -> None:
    for expert, count in enumerate(recv_count.tolist()):
        target.data[expert, :count].copy_(source.data[expert, :count])
        target.src_info[expert, :count].copy_(source.src_info[expert, :count])
        if target.scales is not None and source.scales is not None:
            target.scales[expert, :count].copy_(source.scales[expert, :count])
