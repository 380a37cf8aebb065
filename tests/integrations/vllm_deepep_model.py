"""A layer of experts whose results need no rounding, and what it gives, without any exchange.

Numbers are small multiples of powers of two, so sums are the same in any order, in fp8 and bf16.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

HIDDEN, TOPK, EXPERTS, BLOCK = 256, 3, 8, 128


class Batch(NamedTuple):
    """One rank's tokens."""

    x: torch.Tensor  # bf16 [T, H]
    ids: torch.Tensor  # int64 [T, K], no expert twice
    weights: torch.Tensor  # float32 [T, K]


def batches(counts: tuple[int, ...], seed: int, chosen: str = "any") -> list[Batch]:
    """Those of every rank. ``chosen`` "first rank": its experts get everything."""
    generator = torch.Generator().manual_seed(seed)
    experts = EXPERTS if chosen == "any" else EXPERTS // len(counts)
    found = []
    for count in counts:
        x = torch.randint(-1, 2, (count, HIDDEN), generator=generator).to(torch.bfloat16)
        ids = torch.rand(count, experts, generator=generator).argsort(1)[:, :TOPK].contiguous()
        weights = torch.randint(1, 3, ids.shape, generator=generator) / 2
        found.append(Batch(x, ids, weights))
    return found


def scale_of(ids: torch.Tensor) -> torch.Tensor:
    """With which an expert multiplies its rows."""
    return torch.tensor([1.0, 2.0])[ids % 2] * torch.tensor([1.0, -1.0])[ids // 2 % 2]


def layer(own: Batch) -> torch.Tensor:
    """The layer's result for a rank's tokens, bf16."""
    out = torch.zeros(own.x.shape, dtype=torch.float64)
    for t in range(len(own.x)):
        for expert, weight in zip(own.ids[t], own.weights[t], strict=True):
            out[t] += (weight * scale_of(expert)).double() * own.x[t].double()
    assert torch.equal(out.to(torch.bfloat16).double(), out)
    return out.to(torch.bfloat16)
