"""Which ranks a rank's tokens go to, and how many go where."""

from __future__ import annotations

from typing import NamedTuple

import torch

from .._base import check
from .._base.place import Place

_RANKS_PER_HOST = 8  # upstream's, of which it counts tokens per host


class Layout(NamedTuple):
    """Counts of one rank's tokens. R ranks, E experts, T tokens."""

    num_tokens_per_rank: torch.Tensor  # int32 [R], each token once per rank
    num_tokens_per_rdma_rank: torch.Tensor | None  # int32 [R/8], rounded up; None up to 8 ranks
    num_tokens_per_expert: torch.Tensor  # int32 [E], each selection
    is_token_in_rank: torch.Tensor  # bool [T, R]


def layout_of(topk_idx: torch.Tensor, num_experts: int, num_ranks: int, place: Place) -> Layout:
    """The layout of int64 [T, K], -1 for no selection."""
    num_experts = check.experts(num_experts, num_ranks)
    check.tensor("topk_idx", topk_idx, torch.int64, (None, None), place)
    check.topk(topk_idx.shape[1])
    _check_ids(topk_idx, num_experts)
    counts = torch.bincount(topk_idx[topk_idx >= 0], minlength=num_experts)
    # One more column takes what is not selected.
    ranks = torch.where(topk_idx < 0, num_ranks, topk_idx // (num_experts // num_ranks))
    in_rank = torch.zeros((len(topk_idx), num_ranks + 1), dtype=torch.bool, device=topk_idx.device)
    in_rank = in_rank.scatter_(1, ranks, True)[:, :num_ranks].contiguous()
    return Layout(num_tokens_to(in_rank), _num_tokens_per_host(in_rank), counts.int(), in_rank)


def num_tokens_to(in_rank: torch.Tensor) -> torch.Tensor:
    """int32 [R]: how many tokens go to each rank."""
    return in_rank.sum(0, dtype=torch.int32)


def _check_ids(topk_idx: torch.Tensor, num_experts: int) -> None:
    if not topk_idx.numel():
        return
    least, most = (int(one) for one in topk_idx.aminmax())
    if least < -1 or most >= num_experts:
        wrong = least if least < -1 else most
        raise check.refuse("topk_idx", f"expert {wrong}", f"-1 to {num_experts - 1}")


def _num_tokens_per_host(in_rank: torch.Tensor) -> torch.Tensor | None:
    if in_rank.shape[1] <= _RANKS_PER_HOST:
        return None
    hosts = in_rank.split(_RANKS_PER_HOST, dim=1)
    return torch.stack([one.any(1).sum(dtype=torch.int32) for one in hosts])
