"""Batches, and what a MoE layer over them must give, one token after the other, in plain torch."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

HIDDEN, TOPK, MAX_TOKENS = 256, 3, 8
BLOCK = 128


@dataclass
class Batch:
    """A rank's tokens: x bf16 [T, H], ids int32 [T, K] (-1 selects nothing), weights [T, K]."""

    x: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor

    def routing(self) -> Any:
        """As SGLang's router hands it over."""
        return SimpleNamespace(topk_ids=self.ids, topk_weights=self.weights)


def batch(seed: int, rank: int, experts: int) -> Batch:
    """Every rank can make every rank's: of another length each, now and then of none."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    num_tokens = int(torch.randint(0, MAX_TOKENS + 1, (1,), generator=generator))
    if (seed + rank) % 3 == 0:
        num_tokens = 0
    scale = torch.rand(num_tokens, 1, generator=generator) * 10  # blocks of other sizes
    x = torch.randn(num_tokens, HIDDEN, generator=generator) * scale
    ids = torch.rand(num_tokens, experts, generator=generator).argsort(1)[:, :TOPK]
    ids[torch.rand(num_tokens, TOPK, generator=generator) < 0.1] = -1
    weights = torch.rand(num_tokens, TOPK, generator=generator)
    return Batch(x.to(torch.bfloat16), ids.to(torch.int32), weights)


def quantise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """e4m3 [T, H] and float32 [T, H/128]. Tensors divide tensors: that is IEEE division."""
    blocks = x.float().view(len(x), HIDDEN // BLOCK, BLOCK)
    amax = blocks.abs().amax(-1).clamp(min=1e-4)
    most = torch.full_like(amax, 448.0)
    values = (blocks * (most / amax)[..., None]).clamp(-448, 448)
    return values.view(x.shape).to(torch.float8_e4m3fn), amax / most


def restore(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """What the experts read, in bf16."""
    blocks = values.float().view(len(values), HIDDEN // BLOCK, BLOCK) * scales[..., None]
    return blocks.view(values.shape).to(torch.bfloat16)


def expert(number: int, rows: torch.Tensor) -> torch.Tensor:
    """Row by row, another function for each expert; bf16 in and out."""
    return (rows.float() * (1 + number / 8) + number).to(torch.bfloat16)


def rows_of(number: int, batches: list[Batch], fp8: bool) -> list[bytes]:
    """The bytes of all rows that an expert must get, sorted: their order is free."""
    found = []
    for one in batches:
        for token in (one.ids == number).any(1).nonzero().view(-1).tolist():
            found.append(row_bytes(one.x[token : token + 1], fp8))
    return sorted(found)


def row_bytes(x: torch.Tensor, fp8: bool) -> bytes:
    """One row [1, H] as it travels."""
    if not fp8:
        return x.view(torch.uint8).cpu().numpy().tobytes()
    return packed(*quantise(x))


def packed(values: torch.Tensor, scales: torch.Tensor | None) -> bytes:
    """A received row with its scales."""
    data = values.contiguous().view(torch.uint8).cpu().numpy().tobytes()
    return data if scales is None else data + scales.contiguous().cpu().numpy().tobytes()


def layer(one: Batch, fp8: bool, lost: frozenset[int] = frozenset()) -> torch.Tensor:
    """The layer's result for a rank's tokens, without the experts in ``lost``."""
    out = torch.zeros(one.x.shape, dtype=torch.float32)
    for token in range(len(one.x)):
        row = one.x[token : token + 1]
        row = restore(*quantise(row)) if fp8 else row
        for k in range(TOPK):
            number = int(one.ids[token, k])
            if number >= 0 and number not in lost:
                out[token] = out[token] + one.weights[token, k] * expert(number, row)[0].float()
    return out.to(torch.bfloat16)


def weighted(
    ids: list[int], weights: torch.Tensor, row: torch.Tensor, expanded: bool = False
) -> torch.Tensor:
    """One rank's outputs for a row [1, H], of experts that are not -1: added, then in bf16.

    ``expanded``: each output is a row of its own, in bf16 as well.
    """
    total = torch.zeros(row.shape[1], dtype=torch.float32)
    for k, number in enumerate(ids):
        if number >= 0:
            output = weights[k] * expert(number, row)[0].float()
            total = total + (output.to(torch.bfloat16).float() if expanded else output)
    return total.to(torch.bfloat16)


def prompt_layer(
    one: Batch, local_experts: int, num_ranks: int, *, fp8: bool = False, expanded: bool = False
) -> torch.Tensor:
    """The layer's result where each rank adds up its own experts' outputs first."""
    out = torch.zeros(one.x.shape, dtype=torch.float32)
    for token, row in enumerate(one.x.unsqueeze(1)):
        ids = one.ids[token].tolist()
        row = restore(*quantise(row)) if fp8 else row
        for rank in range(num_ranks):
            here = [i if i >= 0 and i // local_experts == rank else -1 for i in ids]
            out[token] += weighted(here, one.weights[token], row, expanded).float()
    return out.to(torch.bfloat16)


def prompt_rows(
    rank: int, batches: list[Batch], local_experts: int, fp8: bool = False
) -> list[bytes]:
    """What a rank must get, by source and token: the bytes with the local ids."""
    found = []
    for one in batches:
        for token, ids in enumerate(one.ids.tolist()):
            local = [
                i % local_experts if i >= 0 and i // local_experts == rank else -1 for i in ids
            ]
            if max(local) >= 0:
                row = row_bytes(one.x[token : token + 1], fp8)
                found.append(row + bytes(str(local), "ascii"))
    return found
