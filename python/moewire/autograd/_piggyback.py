"""The 16-bit values that are piggybacked on a row of the backward, after its hidden values.

A dispatch copies the bits of its rows, so the values after a gradient's row may hold anything: the
token's K expert ids (int32) and K routing weights (float32), two values each. A combine adds, so
on the way back the values are bf16 numbers: three per selection, with a float32 number as their
sum. For a selection, at most one of a token's K rows has values other than zero, and its weight is
1. So the sum of the rows leaves these values as they are.
"""

from __future__ import annotations

import torch

from . import _parts

_ALIGNMENT = 8  # hidden sizes are multiples of this


def num_values(num_topk: int) -> int:
    """The number of values: 4 * K, rounded up to whole blocks."""
    return -(-4 * num_topk // _ALIGNMENT) * _ALIGNMENT


def nothing(topk_idx: torch.Tensor, hidden: int) -> torch.Tensor:
    """bf16 [T, H + num_values(K)] of zeros, for a dispatch that only learns where rows go."""
    num_tokens, num_topk = topk_idx.shape
    shape = num_tokens, hidden + num_values(num_topk)
    return torch.zeros(shape, dtype=torch.bfloat16, device=topk_idx.device)


def with_routing(
    rows: torch.Tensor, topk_idx: torch.Tensor, topk_weights: torch.Tensor
) -> torch.Tensor:
    """bf16 [T, H + num_values(K)]: rows [T, H], then ids and weights [T, K], bit for bit.

    Ids and weights of narrower types are widened.
    """
    num_topk = topk_idx.shape[1]
    bits = rows.view(torch.int16)
    parts = [
        bits,
        topk_idx.to(torch.int32).view(torch.int16),
        topk_weights.float().contiguous().view(torch.int16),
        bits.new_zeros((rows.shape[0], num_values(num_topk) - 4 * num_topk)),
    ]
    return torch.cat(parts, dim=1).view(torch.bfloat16)


def routing_of(rows: torch.Tensor, hidden: int, num_topk: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids int32 [N, K] and weights float32 [N, K] out of rows made by ``with_routing``."""
    ids = rows[:, hidden : hidden + 2 * num_topk].contiguous().view(torch.int32)
    begin = hidden + 2 * num_topk
    weights = rows[:, begin : begin + 2 * num_topk].contiguous().view(torch.float32)
    return ids, weights


def with_scalars(rows: torch.Tensor, scalars: torch.Tensor) -> torch.Tensor:
    """bf16 [N, H + num_values(K)]: rows [N, H], then float32 [N, K] as sums of three numbers.

    ``_parts`` says how exact that is.
    """
    num_topk = scalars.shape[1]
    unused = rows.new_zeros((rows.shape[0], num_values(num_topk) - _parts.PARTS * num_topk))
    return torch.cat([rows, *_parts.split(scalars), unused], dim=1)


def scalars_of(rows: torch.Tensor, hidden: int, num_topk: int) -> torch.Tensor:
    """float32 [T, K] out of combined rows that were made by ``with_scalars``."""
    parts = rows[:, hidden : hidden + _parts.PARTS * num_topk].float()
    return _parts.merge(*parts.unflatten(1, (_parts.PARTS, num_topk)).unbind(1))
