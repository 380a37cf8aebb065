"""Gradients through dispatch and combine, against one process in float64."""

from __future__ import annotations

import pytest
import torch

from harness import jobs_autograd
from harness.team import Team
from moewire import _lanes

FORMS = pytest.mark.parametrize("flat", [False, True], ids=["packed", "flat"])


@FORMS
@pytest.mark.parametrize("size", [1, 2, 4], ids="R{}".format)
@pytest.mark.parametrize(("num_slots", "topk"), [(1, 2), (2, 2), (3, 3)])
def test_every_bit_where_nothing_is_rounded(
    team: Team, flat: bool, size: int, num_slots: int, topk: int
) -> None:
    team.run(size, jobs_autograd.exact, flat, num_slots, topk)


@FORMS
@pytest.mark.parametrize("reentrant", [False, True], ids=["", "reentrant"])
def test_checkpointing(team: Team, flat: bool, reentrant: bool) -> None:
    team.run(3, jobs_autograd.checkpointed, flat, reentrant, timeout=180)


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
@pytest.mark.parametrize("everywhere", [True, False], ids=["", "on one rank"])
def test_an_exception_in_a_backward_leaves_nothing_open(
    team: Team, flat: bool, everywhere: bool
) -> None:
    team.run(3, jobs_autograd.experts_that_raise, flat, everywhere)


@FORMS
def test_bits_do_not_depend_on_the_order_of_arrival(team: Team, flat: bool) -> None:
    for found in team.run(3, jobs_autograd.same_bits_again, flat):
        assert len(set(found)) == 1


def test_what_cannot_work_says_so(team: Team) -> None:
    team.run(2, jobs_autograd.refusals)


@FORMS
def test_a_rank_dies_between_forward_and_backward(team: Team, flat: bool) -> None:
    team.run(3, jobs_autograd.lost, flat, dies=frozenset({2}))


def test_float32_numbers_travel_as_sums_of_bf16() -> None:
    """Weights' gradients: every bit, from 2**-100 up; infinities and NaN as themselves."""
    generator = torch.Generator().manual_seed(1)
    powers = torch.randint(-100, 127, (2000, 3), generator=generator)
    numbers = (torch.rand((2000, 3), generator=generator) + 1) * torch.exp2(powers.float())
    numbers *= torch.randint(0, 2, numbers.shape, generator=generator) * 2 - 1
    numbers[0] = torch.tensor([0.0, float("inf"), -float("inf")])
    numbers[1, 0] = float("nan")
    rows = torch.ones((2000, 8), dtype=torch.bfloat16)
    there = _lanes.with_scalars(rows, numbers)
    assert there.shape == (2000, 8 + _lanes.num_lanes(3)) and torch.equal(there[:, :8], rows)
    back = _lanes.scalars_of(there, 8, 3)
    assert torch.equal(back.nan_to_num(7.0), numbers.nan_to_num(7.0))
