"""HybridEP's interface: rows by expert, probabilities of all experts, handles that last."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from harness import jobs_hybrid
from harness.team import Team
from moewire.deep_ep.hybrid_ep_buffer import indices_to_map
from moewire.errors import InvalidArgument

SIZES = pytest.mark.parametrize("size", [1, 3, pytest.param(4, marks=pytest.mark.all)])


@SIZES
def test_routing_maps(team: Team, size: int) -> None:
    team.run(size, jobs_hybrid.maps)


@SIZES
def test_lists_of_experts(team: Team, size: int) -> None:
    team.run(size, jobs_hybrid.indices)


def test_new_buffers_after_a_late_rank(team: Team) -> None:
    *present, late = team.run(3, jobs_hybrid.late_rank)
    assert late == [] and all("[2]" in text for (text,) in present)


REFUSED = (
    "InvalidArgument: routing_map and topk_idx: None given",
    "InvalidArgument: routing_map: shape",
    "InvalidArgument: routing_map: dtype",
    "InvalidArgument: probs: shape",
    "InvalidArgument: num_of_experts: ",
    "InvalidArgument: pad_multiple: -1 given",
    "InvalidArgument: routing_map, topk_idx, topk_weights: one of them given",
    "InvalidArgument: pad_multiple: 2 given; allowed: None, or the handle's 1",
    "InvalidArgument: hidden: 99 tokens given",
    "InvalidArgument: handle: tuple given",
    "InvalidArgument: hidden: dtype torch.bfloat16 given; allowed: 1 byte per element",
    "InvalidArgument: scaling_factor: dtype torch.float16 given",
    "InvalidArgument: num_permuted_tokens: -1 given",
    "InvalidArgument: num_permuted_tokens: 1000000.5 of type float given",
    "InvalidArgument: probs and topk_weights: both given; allowed: one of them",
    "InvalidArgument: num_of_experts: 6 given; allowed: None, or 8 as of num_of_experts_per_rank 4",
    "InvalidArgument: num_of_experts, num_of_experts_per_rank: None, 4 given",
    "InvalidArgument: hidden: layout torch.sparse_coo given",
    "InvalidArgument: hidden: hidden size 4 given",
    "InvalidArgument: hidden: shape",
    "InvalidArgument: hidden: dtype torch.float32 given; allowed: dtype torch.bfloat16",
    "InvalidArgument: hidden: 0 rows given; allowed: at least",
    "InvalidArgument: probs: shape",
    "InvalidArgument: pad_multiple: 3 given",
    "AttributeError: moewire.deep_ep.HybridEPBuffer has no dispatch",
    "AttributeError: moewire.deep_ep.HybridEPBuffer has no combine",
    "InvalidArgument: hidden_dim: 0 given",
    "InvalidArgument: num_permuted_tokens: ",
    "InvalidArgument: routing_map: 132 experts of a token on some rank given; allowed: up to 64",
)


def test_what_is_refused_is_named(team: Team) -> None:
    for said in team.run(2, jobs_hybrid.refusals):
        for text, start in zip(said, REFUSED, strict=True):
            assert text.startswith(start) or not text, (text, start)


@pytest.mark.parametrize(
    ("ids", "weights", "tokens", "words"),
    [
        ([[0, 1]], None, 2, "topk_idx: shape [1, 2] given; allowed: shape [2, any]"),
        ([0, 1], None, 2, "topk_idx: shape [2] given"),
        ([[0, 1]], [[1.0]], 1, "topk_weights: shape [1, 1] given; allowed: shape [1, 2]"),
        ([[4, -1]], None, 1, "topk_idx: expert 4 given; allowed: -1 to 3"),
        ([[0, -2]], [[1.0, 1.0]], 1, "topk_idx: expert -2 given; allowed: -1 to 3"),
        ([[0.0, 1.6]], None, 1, "topk_idx: dtype torch.float32 given; allowed: dtype torch.int64"),
        ([[True]], None, 1, "topk_idx: dtype torch.bool given"),
        ([[0]], [[1]], 1, "topk_weights: dtype torch.int64 given; allowed: dtype torch.float32"),
        ([[0]], [[1.0]], 1.0, "num_of_tokens: 1.0 of type float given"),
    ],
)
def test_tables_of_wrong_lists(ids: Any, weights: Any, tokens: int, words: str) -> None:
    given = None if weights is None else torch.tensor(weights)
    with pytest.raises(InvalidArgument, match=re.escape(words)):
        indices_to_map(torch.tensor(ids), given, tokens, 4)


def test_tables_of_what_is_no_list() -> None:
    ids: Any = torch.zeros((1, 1), dtype=torch.int32)
    with pytest.raises(InvalidArgument, match=r"topk_idx: list given; allowed: a torch.Tensor"):
        indices_to_map(ids.tolist(), None, 1, 4)
    with pytest.raises(InvalidArgument, match="num_of_experts: 0 given; allowed: 1 to"):
        indices_to_map(ids, None, 1, 0)
    with pytest.raises(InvalidArgument, match="topk_weights: device meta given; allowed: device c"):
        indices_to_map(ids, torch.ones((1, 1), device="meta"), 1, 4)
    chosen, none = indices_to_map(torch.empty((0, 2), dtype=torch.int32), None, 0, 4)
    assert chosen.shape == (0, 4) and none is None
