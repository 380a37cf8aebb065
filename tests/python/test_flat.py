"""Flat operations against a naive reference, on real processes."""

from __future__ import annotations

import pytest

from harness import jobs_flat
from harness.team import Team

CASES = {1: 40, 2: 80, 3: 60, 4: 50, 8: 30}


@pytest.mark.parametrize("size", CASES, ids="R={}".format)
def test_random_cases_have_the_references_bits(team: Team, size: int) -> None:
    results = team.run(size, jobs_flat.random_cases, CASES[size], timeout=150)
    assert min(results) >= CASES[size] // 2


def test_copied_outputs_have_the_references_bits(team: Team) -> None:
    team.run(2, jobs_flat.random_cases, 40, True, timeout=90)


def test_bad_arguments_are_named_and_consume_nothing(team: Team) -> None:
    team.run(2, jobs_flat.wrong_calls)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("K", ("num_topk", "2", "3")),
        ("extra", ("extra[0]", "0", "12")),
        ("outputs", ("output dtype", "bf16", "float32")),
        ("form", ("form", "flat", "packed")),
    ],
)
def test_ranks_that_disagree(team: Team, what: str, words: tuple[str, ...]) -> None:
    for text in team.run(2, jobs_flat.disagreement, what):
        assert all(word in text for word in words), text


def test_life_of_results(team: Team) -> None:
    team.run(2, jobs_flat.life_of_results)


@pytest.mark.parametrize("where", ["dispatch", "combine"])
def test_a_rank_is_killed(team: Team, where: str) -> None:
    team.run(3, jobs_flat.killed_in, where, dies=frozenset({1}))


def test_a_frozen_rank_comes_back(team: Team) -> None:
    team.run(3, jobs_flat.frozen)
