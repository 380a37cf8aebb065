"""HybridEP's interface: rows by expert, probabilities of all experts, handles that last."""

from __future__ import annotations

import pytest

from harness import jobs_hybrid
from harness.team import Team

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
    "InvalidArgument: num_experts: ",
    "InvalidArgument: pad_multiple: -1 given",
    "InvalidArgument: routing_map, topk_idx, topk_weights: one of them given",
    "InvalidArgument: pad_multiple: 2 given; allowed: None, or the handle's 1",
    "InvalidArgument: hidden: 99 tokens given",
    "InvalidArgument: handle: tuple given",
    "InvalidArgument: x[0]: dtype",
    "InvalidArgument: num_permuted_tokens: -1 given",
    "InvalidArgument: hidden: [",
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
