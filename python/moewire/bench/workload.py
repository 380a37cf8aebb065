"""What is moved: the same random tokens and routing for Moewire, the floor and the peers."""

from __future__ import annotations

from typing import NamedTuple

import torch

from .cases import Case

FP8_BLOCK = 128
FP8_MAX = 448.0
FP8_LEAST_AMAX = 1e-4


class Workload(NamedTuple):
    """One rank's share; ``routing`` is that of all ranks."""

    rank: int
    num_ranks: int
    num_experts: int
    fp8: bool
    x: torch.Tensor  # bf16 [T, H]
    weights: torch.Tensor  # float32 [T, K]
    routing: torch.Tensor  # int64 [R, T, K]

    @property
    def topk_idx(self) -> torch.Tensor:
        """int64 [T, K], contiguous."""
        return self.routing[self.rank]

    @property
    def num_tokens(self) -> int:
        """T, which is M too."""
        return int(self.x.shape[0])

    @property
    def hidden(self) -> int:
        """H."""
        return int(self.x.shape[1])

    @property
    def num_local_experts(self) -> int:
        """L."""
        return self.num_experts // self.num_ranks

    @property
    def row_bytes(self) -> int:
        """Bytes of one dispatched row."""
        hidden = self.hidden
        return hidden + 4 * (hidden // FP8_BLOCK) if self.fp8 else 2 * hidden

    @property
    def num_rows(self) -> int:
        """Rows that this rank sends."""
        return int(self.topk_idx.numel())


def make(case: Case, seed: int, rank: int) -> Workload:
    """Every token selects K distinct experts, uniformly."""
    common = torch.Generator().manual_seed(seed)
    own = torch.Generator().manual_seed(seed * 1000 + rank)
    tokens = case.ranks * case.tokens
    routing = torch.rand(tokens, case.experts, generator=common).topk(case.topk).indices
    weights = torch.rand(case.tokens, case.topk, generator=own).softmax(dim=1)
    return Workload(
        rank=rank,
        num_ranks=case.ranks,
        num_experts=case.experts,
        fp8=case.dtype == "fp8",
        x=torch.randn(case.tokens, case.hidden, generator=own).bfloat16(),
        weights=weights.contiguous(),
        routing=routing.view(case.ranks, case.tokens, case.topk).contiguous(),
    )


def quantise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """bf16 [N, H] to float8_e4m3fn [N, H] and float32 scales [N, H/128]."""
    blocks = x.float().view(x.shape[0], -1, FP8_BLOCK)
    amax = blocks.abs().amax(dim=2).clamp(min=FP8_LEAST_AMAX)
    scale = torch.div(torch.full_like(amax, FP8_MAX), amax)
    q = (blocks * scale.unsqueeze(2)).to(torch.float8_e4m3fn)
    return q.view(x.shape), torch.div(amax, torch.full_like(amax, FP8_MAX))


def dequantise(q: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The inverse, as bf16 [N, H]; what the identity expert answers with fp8."""
    blocks = q.float().view(q.shape[0], -1, FP8_BLOCK) * scales.unsqueeze(2)
    return blocks.view(q.shape).bfloat16()


def expected(work: Workload) -> torch.Tensor:
    """bf16 [T, H]: what combine answers to identity experts, summed over the own tokens alone."""
    values = dequantise(*quantise(work.x)) if work.fp8 else work.x
    total = torch.zeros(work.x.shape)
    for k in range(work.weights.shape[1]):
        total += work.weights[:, k : k + 1] * values.float()
    return total.bfloat16()
