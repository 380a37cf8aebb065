"""The arguments of a dispatch that say where tokens go."""

from __future__ import annotations

from typing import NamedTuple, cast

import torch

from .._base import check
from .._base.place import Place
from ._layout import num_tokens_to


class Routed(NamedTuple):
    """Checked; upstream's names and shapes."""

    num_experts: int
    is_token_in_rank: torch.Tensor  # bool [T, R]
    num_tokens_per_expert: torch.Tensor  # int32 [E]
    topk_idx: torch.Tensor | None  # int64 [T, K]
    topk_weights: torch.Tensor | None  # float32 [T, K]


def routed(
    num_tokens: int,
    num_ranks: int,
    place: Place,
    *,
    num_tokens_per_rank: torch.Tensor | None,
    is_token_in_rank: torch.Tensor | None,
    num_tokens_per_expert: torch.Tensor | None,
    topk_idx: torch.Tensor | None,
    topk_weights: torch.Tensor | None,
) -> Routed:
    """What a dispatch without a handle needs of ``get_dispatch_layout``, and of the router."""
    name, shape = "is_token_in_rank", (num_tokens, num_ranks)
    in_rank = cast(torch.Tensor, is_token_in_rank)
    check.tensor(name, in_rank, torch.bool, shape, place)
    name, per_rank = "num_tokens_per_rank", cast(torch.Tensor, num_tokens_per_rank)
    check.tensor(name, per_rank, torch.int32, (num_ranks,), place)
    given, found = per_rank.tolist(), num_tokens_to(in_rank).tolist()
    if given != found:
        raise check.refuse(name, str(given), f"what is_token_in_rank has, {found}")
    name, per_expert = "num_tokens_per_expert", cast(torch.Tensor, num_tokens_per_expert)
    check.tensor(name, per_expert, torch.int32, (None,), place)
    num_experts = check.experts(len(per_expert), num_ranks)
    if (topk_idx is None) != (topk_weights is None):
        raise check.refuse("topk_idx and topk_weights", "one of them", "both or neither")
    if topk_idx is not None:
        check_selections(num_tokens, topk_idx, topk_weights, place)
    return Routed(num_experts, in_rank, per_expert, topk_idx, topk_weights)


def check_selections(
    num_tokens: int, topk_idx: torch.Tensor, topk_weights: torch.Tensor | None, place: Place
) -> None:
    """Expert ids int64 [T, K], and weights float32 [T, K] if there are any."""
    check.tensor("topk_idx", topk_idx, torch.int64, (num_tokens, None), place)
    num_topk = topk_idx.shape[1]
    check.topk(num_topk)
    if topk_weights is not None:
        check.tensor("topk_weights", topk_weights, torch.float32, (num_tokens, num_topk), place)


def refuse_routing(topk_idx: object, topk_weights: object) -> None:
    """With a handle they do not travel."""
    if topk_idx is not None or topk_weights is not None:
        raise check.refuse("topk_idx and topk_weights", "tensors", "None with a handle")
