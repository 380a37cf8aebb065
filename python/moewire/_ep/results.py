"""What a dispatch received, as tensors: views of the workspace, or copies."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

import torch

from .. import _abi as abi
from .._base.check import FP8_BLOCK, UE8M0_PACK
from .._native.plan import Plan
from ..handle import Driven

RecvX: TypeAlias = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
# A tensor over the workspace: address, shape, dtype.
View: TypeAlias = Callable[[int, tuple[int, ...], torch.dtype], torch.Tensor]


class Rows(NamedTuple):
    """All that received rows have. Of packed rows those from ``recv_count[l]`` on are undefined.

    The shapes are those of packed rows; flat rows have no L.
    """

    data: torch.Tensor  # bf16 or float8_e4m3fn [L, R*M, H]
    # Token stride 1: float32 [L, R*M, H/128], or int32 [L, R*M, H/512] of UE8M0; None for bf16.
    scales: torch.Tensor | None
    src_info: torch.Tensor  # int32 [L, R*M]
    topk_idx: torch.Tensor | None = None  # flat: int64 [R*M, K]
    topk_weights: torch.Tensor | None = None  # flat: float32 [R*M, K]
    extra: tuple[torch.Tensor, ...] = ()  # flat: [R*M, ...]

    @property
    def recv_x(self) -> RecvX:
        """As callers get it: a pair with fp8."""
        return self.data if self.scales is None else (self.data, self.scales)

    def each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Rows:
        """A copy of this with ``change`` applied to each tensor."""
        made = [None if part is None else change(part) for part in self[:5]]
        return Rows._make((*made, tuple(map(change, self.extra))))

    def parts(self) -> list[torch.Tensor]:
        """The tensors that are not None."""
        return [part for part in (*self[:5], *self.extra) if part is not None]

    def fresh(self) -> tuple[RecvX, torch.Tensor]:
        """recv_x and src_info over the same memory, as new tensors.

        If a caller changes a tensor object, for example by requires_grad_(), no other sees it.
        """
        data, scales, src_info = self[:3]
        if scales is None:
            return data.detach(), src_info.detach()
        return (data.detach(), scales.detach()), src_info.detach()

    def first(self, num_rows: int, copy: bool) -> Rows:
        """The first flat rows: new views, which nothing else holds, or copies."""
        return self.each(lambda tensor: tensor[:num_rows].clone() if copy else tensor[:num_rows])


def over_workspace(view: View, raw: abi.mw_dispatch_result_t, plan: Plan) -> Rows:
    """Tensors over all the room that there is."""
    *blocks, num_rows, hidden = plan.rows
    dtype = torch.float8_e4m3fn if plan.fp8 else torch.bfloat16
    scales = topk_idx = topk_weights = None
    if plan.fp8:
        # Contiguous as [L, H/128, R*M]; upstream returns the transposed view.
        words = hidden // (FP8_BLOCK * UE8M0_PACK if plan.ue8m0 else FP8_BLOCK)
        kind = torch.int32 if plan.ue8m0 else torch.float32
        scales = view(raw.recv_scales, (*blocks, words, num_rows), kind).transpose(-2, -1)
    if plan.has_routing:
        shape = (num_rows, plan.num_topk)
        topk_idx = view(raw.recv_topk_idx, shape, torch.int64)
        topk_weights = view(raw.recv_topk_weights, shape, torch.float32)
    return Rows(
        view(raw.recv_x, plan.rows, dtype),
        scales,
        view(raw.src_info, (*blocks, num_rows), torch.int32),
        topk_idx,
        topk_weights,
        tuple(
            view(raw.recv_extra[at], (num_rows, *shape), dtype)
            for at, (dtype, shape) in enumerate(plan.extra)
        ),
    )


def copies(source: Rows, recv_count: torch.Tensor, operation: Driven) -> Rows:
    """Ordinary tensors, filled with the valid packed rows when the operation is done."""
    target = source.each(torch.empty_like)
    operation.when_done(partial(_copy, source, target, recv_count))
    return target


def copies_of_all(source: Rows, when_done: Callable[[Callable[[], None]], None]) -> Rows:
    """Ordinary tensors where ``source`` lies, with all rows: the host knows no numbers."""
    target = source.each(torch.empty_like)

    def copy() -> None:
        for to, part in zip(target.parts(), source.parts(), strict=True):
            to.copy_(part)

    when_done(copy)
    return target


def _copy(source: Rows, target: Rows, recv_count: torch.Tensor) -> None:
    for expert, count in enumerate(recv_count.tolist()):
        for to, part in zip(target.parts(), source.parts(), strict=True):
            to[expert, :count].copy_(part[expert, :count])
