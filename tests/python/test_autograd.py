"""Gradients through dispatch and combine, against one process in float64."""

from __future__ import annotations

import pytest

from harness import jobs_autograd
from harness.team import Team

FORMS = pytest.mark.parametrize("flat", [False, True], ids=["packed", "flat"])


@FORMS
@pytest.mark.parametrize("size", [1, 2, 4], ids="R{}".format)
@pytest.mark.parametrize(("num_slots", "topk"), [(1, 2), (2, 2), (3, 3)])
def test_every_bit_where_nothing_is_rounded(
    team: Team, flat: bool, size: int, num_slots: int, topk: int
) -> None:
    team.run(size, jobs_autograd.exact, flat, num_slots, topk)


@FORMS
def test_a_corrupted_combine_is_noticed(team: Team, flat: bool) -> None:
    team.run(2, jobs_autograd.corrupted, flat)


@FORMS
def test_as_close_as_the_roundings_allow(team: Team, flat: bool) -> None:
    team.run(3, jobs_autograd.bounded, flat)


@FORMS
def test_parts_of_the_graph(team: Team, flat: bool) -> None:
    team.run(3, jobs_autograd.parts_of_the_graph, flat)


@FORMS
def test_bits_do_not_depend_on_the_order_of_arrival(team: Team, flat: bool) -> None:
    for found in team.run(3, jobs_autograd.same_bits_again, flat):
        assert len(set(found)) == 1


def test_what_cannot_work_says_so(team: Team) -> None:
    team.run(2, jobs_autograd.refusals)


@FORMS
def test_a_rank_dies_between_forward_and_backward(team: Team, flat: bool) -> None:
    team.run(3, jobs_autograd.lost, flat, dies=frozenset({2}))
