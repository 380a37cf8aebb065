"""Selections as tables of all experts, which HybridEP's clients have, and as lists of a token's."""

from __future__ import annotations

import torch


def indices_to_map(
    topk_idx: torch.Tensor,
    topk_weights: torch.Tensor | None,
    num_of_tokens: int,
    num_of_experts: int,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """A routing map and probabilities.

    Args:
        topk_idx: int64 or int32 [T, K]; -1 selects nothing.
        topk_weights: float32 [T, K] or None.
        num_of_tokens, num_of_experts: T and E.

    Returns:
        ``(routing_map, probs)``: bool [T, E]; float32 [T, E], or None without weights.
    """
    shape = num_of_tokens, num_of_experts
    chosen = dense_of(torch.ones_like(topk_idx, dtype=torch.float32), topk_idx, shape[1]) > 0
    assert chosen.shape == shape
    return chosen, None if topk_weights is None else dense_of(topk_weights, topk_idx, shape[1])


def dense_of(values: torch.Tensor, ids: torch.Tensor, num_experts: int) -> torch.Tensor:
    """float32 [T, E]: each selection's value, 0 where there is none. Both are [T, K]."""
    shape = len(ids), num_experts + 1  # one more takes the -1
    out = torch.zeros(shape, dtype=torch.float32, device=ids.device)
    places = torch.where(ids < 0, num_experts, ids.long())
    return out.scatter_add_(1, places, values.float())[:, :num_experts].contiguous()


def widest(routing_map: torch.Tensor) -> int:
    """The most experts of a token of bool [T, E]."""
    return int(routing_map.sum(1).max()) if len(routing_map) else 0


def ids_of(routing_map: torch.Tensor, num_topk: int) -> torch.Tensor:
    """int64 [T, K]: each token's experts of bool [T, E], ascending, then -1."""
    tokens, experts = routing_map.nonzero(as_tuple=True)
    counts = routing_map.sum(1)
    first = counts.cumsum(0) - counts
    nth = torch.arange(len(tokens), dtype=torch.int64, device=tokens.device) - first[tokens]
    shape = len(routing_map), num_topk
    ids = torch.full(shape, -1, dtype=torch.int64, device=routing_map.device)
    ids[tokens, nth] = experts
    return ids


def weights_of(probs: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """float32 [T, K]: the probabilities of each token's experts, 0 where ids are -1."""
    return torch.where(ids < 0, 0.0, probs.gather(1, ids.clamp(min=0)))
