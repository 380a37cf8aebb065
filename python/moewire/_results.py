"""What a dispatch received, as tensors: views of the workspace, or copies."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple, TypeAlias

import torch

from . import _abi as abi
from ._check import FP8_BLOCK, UE8M0_PACK
from ._operation import Operation
from ._runtime import Runtime
from .handle import Shape

RecvX: TypeAlias = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


class Rows(NamedTuple):
    """Received rows; everything from ``recv_count[l]`` on is undefined."""

    data: torch.Tensor  # bf16 or float8_e4m3fn [L, R*M, H]
    # Contiguous float32 [L, H/128, R*M], or int32 [L, H/512, R*M] of UE8M0; None for bf16.
    scales: torch.Tensor | None
    src_info: torch.Tensor  # int32 [L, R*M]

    @property
    def recv_x(self) -> RecvX:
        """As upstream returns it: scales as a [L, R*M, .] view, token stride 1."""
        return self.data if self.scales is None else (self.data, self.scales.transpose(1, 2))


def views(
    runtime: Runtime, raw: abi.mw_dispatch_result_t, shape: Shape, fp8: bool, ue8m0: bool
) -> Rows:
    """Views of the workspace; no copy."""
    mapping = runtime.mapping(raw)
    local, rows, hidden = shape.num_local_experts, shape.num_rows, shape.hidden
    src_info = mapping.view(raw.src_info, (local, rows), torch.int32)
    if not fp8:
        data = mapping.view(raw.recv_x, (local, rows, hidden), torch.bfloat16)
        return Rows(data, None, src_info)
    data = mapping.view(raw.recv_x, (local, rows, hidden), torch.float8_e4m3fn)
    words = hidden // (FP8_BLOCK * UE8M0_PACK if ue8m0 else FP8_BLOCK)
    kind = torch.int32 if ue8m0 else torch.float32
    return Rows(data, mapping.view(raw.recv_scales, (local, words, rows), kind), src_info)


def copies(source: Rows, recv_count: torch.Tensor, operation: Operation) -> Rows:
    """Ordinary tensors, filled with the valid rows when the operation is done."""
    scales = None if source.scales is None else torch.empty_like(source.scales)
    target = Rows(torch.empty_like(source.data), scales, torch.empty_like(source.src_info))
    operation.when_done(partial(_copy, source, target, recv_count))
    return target


def _copy(source: Rows, target: Rows, recv_count: torch.Tensor) -> None:
    for expert, count in enumerate(recv_count.tolist()):
        target.data[expert, :count].copy_(source.data[expert, :count])
        target.src_info[expert, :count].copy_(source.src_info[expert, :count])
        if target.scales is not None and source.scales is not None:
            target.scales[expert, :, :count].copy_(source.scales[expert, :, :count])
