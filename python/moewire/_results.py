"""What a dispatch received, as tensors: views of the workspace, or copies."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple, TypeAlias

import torch

from . import _abi as abi
from ._check import FP8_BLOCK
from ._operation import Operation
from ._runtime import Runtime
from .handle import Shape

RecvX: TypeAlias = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


class Rows(NamedTuple):
    """Received rows; everything from ``recv_count[l]`` on is undefined."""

    data: torch.Tensor  # bf16 or float8_e4m3fn [L, R*M, H]
    scales: torch.Tensor | None  # float32 [L, H/128, R*M], contiguous; None for bf16
    src_info: torch.Tensor  # int32 [L, R*M]

    @property
    def recv_x(self) -> RecvX:
        """As upstream returns it: scales as a [L, R*M, H/128] view, token stride 1."""
        return self.data if self.scales is None else (self.data, self.scales.transpose(1, 2))


def _dims(shape: Shape) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    local, rows, hidden = shape.num_local_experts, shape.num_rows, shape.hidden
    return (local, rows, hidden), (local, hidden // FP8_BLOCK, rows), (local, rows)


def views(runtime: Runtime, raw: abi.mw_dispatch_result_t, shape: Shape, fp8: bool) -> Rows:
    """Views of the workspace; no copy."""
    mapping = runtime.mapping(raw)
    data_dims, scale_dims, info_dims = _dims(shape)
    src_info = mapping.view(raw.src_info, info_dims, torch.int32)
    if not fp8:
        return Rows(mapping.view(raw.recv_x, data_dims, torch.bfloat16), None, src_info)
    data = mapping.view(raw.recv_x, data_dims, torch.float8_e4m3fn)
    return Rows(data, mapping.view(raw.recv_scales, scale_dims, torch.float32), src_info)


def copies(source: Rows, recv_count: torch.Tensor, operation: Operation) -> Rows:
    """Ordinary tensors, filled with the valid rows when the operation is done."""
    scales = None if source.scales is None else torch.empty_like(source.scales)
    target = Rows(torch.empty_like(source.data), scales, torch.empty_like(source.src_info))
    if operation.ended:
        _copy(source, target, recv_count)
    else:
        operation.on_done = partial(_copy, source, target, recv_count)
    return target


def _copy(source: Rows, target: Rows, recv_count: torch.Tensor) -> None:
    for expert, count in enumerate(recv_count.tolist()):
        target.data[expert, :count].copy_(source.data[expert, :count])
        target.src_info[expert, :count].copy_(source.src_info[expert, :count])
        if target.scales is not None and source.scales is not None:
            target.scales[expert, :, :count].copy_(source.scales[expert, :, :count])
