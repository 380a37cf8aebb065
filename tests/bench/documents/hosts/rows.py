"""How many rows a routing sends from one host to the other, by the algorithm."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Rows(NamedTuple):
    """Rows that one host's tokens need at the other host, or bytes per token of both."""

    per_expert: float  # one for each pair of token and expert
    per_rank: float  # one for each pair of token and rank
    per_host: float  # one for each token


def between(routing: torch.Tensor, num_experts: int, host: int) -> Rows:
    """Of the tokens of one of two hosts; routing is int64 [R, T, K], -1 selects nothing.

    Ranks lie on the hosts in order, half of them on each.
    """
    num_ranks = routing.shape[0]
    half, local = num_ranks // 2, num_experts // num_ranks
    ours = routing[host * half : (host + 1) * half]
    # Nothing selected is rank -1, which is on no host.
    ranks = torch.div(ours, local, rounding_mode="floor")
    remote = (ranks >= (1 - host) * half) & (ranks < (2 - host) * half)
    there = [((ranks == rank) & remote).any(dim=2) for rank in range(num_ranks)]
    return Rows(
        per_expert=int(remote.sum()),
        per_rank=sum(int(hit.sum()) for hit in there),
        per_host=int(remote.any(dim=2).sum()),
    )


def to_rank(routing: torch.Tensor, num_experts: int, source: int, target: int) -> int:
    """Tokens of one rank that need another one."""
    local = num_experts // routing.shape[0]
    ranks = torch.div(routing[source], local, rounding_mode="floor")
    return int((ranks == target).any(dim=1).sum())


def selections(routing: torch.Tensor, num_experts: int, source: int, target: int) -> int:
    """Pairs of a token of one rank and an expert of another one."""
    local = num_experts // routing.shape[0]
    ranks = torch.div(routing[source], local, rounding_mode="floor")
    return int((ranks == target).sum())
