"""Selections as tables of all experts, which HybridEP's clients have, and as lists of a token's."""

from __future__ import annotations

import torch

from .._base import check
from .._ep import selections


def indices_to_map(
    topk_idx: torch.Tensor,
    topk_weights: torch.Tensor | None,
    num_of_tokens: int,
    num_of_experts: int,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """A routing map and probabilities.

    Args:
        topk_idx: int64 or int32 [T, K]; -1 selects nothing.
        topk_weights: float32, bf16 or float16 [T, K], on the device of topk_idx, or None.
        num_of_tokens, num_of_experts: T and E.

    Returns:
        ``(routing_map, probs)``: bool [T, E]; float32 [T, E], or None without weights.

    Raises:
        InvalidArgument: an argument does not fit the others; the text names it.
    """
    _check_indices(topk_idx, topk_weights, num_of_tokens, num_of_experts)
    ones = torch.ones_like(topk_idx, dtype=torch.float32)
    chosen = dense_of(ones, topk_idx, num_of_experts) > 0
    if topk_weights is None:
        return chosen, None
    return chosen, dense_of(topk_weights, topk_idx, num_of_experts)


def _check_indices(
    topk_idx: torch.Tensor, topk_weights: torch.Tensor | None, num_tokens: int, num_experts: int
) -> None:
    """On any device, with any strides."""
    check.integer("num_of_tokens", num_tokens, 0, 1 << 31)
    check.limited("num_of_experts", num_experts, "num_experts")
    _check_table("topk_idx", topk_idx, selections.IDS)
    shape = list(topk_idx.shape)
    if len(shape) != 2 or shape[0] != num_tokens:
        raise check.refuse("topk_idx", f"shape {shape}", f"shape [{num_tokens}, any]")
    if topk_weights is not None:
        _check_table("topk_weights", topk_weights, selections.WEIGHTS)
        if list(topk_weights.shape) != shape:
            given = f"shape {list(topk_weights.shape)}"
            raise check.refuse("topk_weights", given, f"shape {shape}")
        if topk_weights.device != topk_idx.device:
            given = f"device {topk_weights.device}"
            raise check.refuse("topk_weights", given, f"device {topk_idx.device}, as topk_idx")
    if topk_idx.numel():
        least, most = (int(one) for one in topk_idx.aminmax())
        if least < -1 or most >= num_experts:
            given = f"expert {most if most >= num_experts else least}"
            raise check.refuse("topk_idx", given, f"-1 to {num_experts - 1}")


def _check_table(name: str, given: object, dtypes: tuple[torch.dtype, ...]) -> None:
    if not isinstance(given, torch.Tensor):
        raise check.refuse(name, type(given).__name__, "a torch.Tensor")
    if given.dtype not in dtypes:
        raise check.refuse(name, f"dtype {given.dtype}", f"dtype {', '.join(map(str, dtypes))}")


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
