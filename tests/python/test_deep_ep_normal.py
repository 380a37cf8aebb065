"""DeepEP's normal mode on processes, against plain loops over all ranks' tokens: every bit."""

from __future__ import annotations

import pytest

from harness import jobs_deep_ep_normal as normal
from harness import jobs_deep_ep_refusals as refusals
from harness.team import Team


@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.all), 3], ids="R={}".format)
@pytest.mark.parametrize("topk", [True, False], ids=["topk", "no topk"])
@pytest.mark.parametrize("content", normal.CONTENTS)
def test_grid(team: Team, size: int, content: str, topk: bool) -> None:
    team.run(size, normal.grid, content, topk)


@pytest.mark.parametrize("size", [1, 4, pytest.param(16, marks=pytest.mark.all)], ids="R={}".format)
def test_shapes(team: Team, size: int) -> None:
    team.run(size, normal.shapes)


@pytest.mark.all
def test_a_long_prompt(team: Team) -> None:
    team.run(2, normal.long_prompt)


@pytest.mark.parametrize(
    "job",
    [
        normal.alignment,
        normal.own_word,
        normal.worst_case,
        normal.worst_case_too_small,
        normal.handles,
        normal.results_belong_to_the_caller,
        normal.biases,
        normal.awaited,
        normal.both_modes,
    ],
    ids=lambda job: job.__name__,
)
def test_three_ranks(team: Team, job: object) -> None:
    team.run(3, job)


@pytest.mark.parametrize(
    "job",
    [refusals.bad_arguments, refusals.closed, refusals.another_buffers_handle],
    ids=lambda job: job.__name__,
)
def test_refusals(team: Team, job: object) -> None:
    team.run(2, job)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("topk", ("num_topk",)),
        ("hidden", ("bytes per row",)),
        ("scales", ("bytes per token of extra",)),
        ("weights", ("bytes per token of topk_weights",)),
        ("handle", ("call",)),
        ("call", ("call",)),
    ],
)
def test_ranks_that_disagree_get_errors(team: Team, how: str, words: tuple[str, ...]) -> None:
    for said in team.run(3, refusals.disagree, how):
        assert all(word in said for word in words), said


def test_a_rank_that_does_not_come_is_named(team: Team) -> None:
    for said in team.run(3, refusals.lost)[:2]:
        assert "2" in said and "nothing" not in said, said


@pytest.mark.parametrize(("num_ranks", "want"), [(9, [2, 2]), (16, [2, 2]), (24, [2, 1, 1])])
def test_tokens_per_group_of_eight(num_ranks: int, want: list[int]) -> None:
    assert normal.tokens_per_host(num_ranks) == want
