"""Gradients through dispatch and combine, against one process in float64."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import moewire
from harness import jobs_autograd
from harness.team import Team
from moewire import autograd
from moewire._ep.flat_results import FlatRows
from moewire.autograd import _piggyback

FORMS = pytest.mark.parametrize("flat", [False, True], ids=["packed", "flat"])


@FORMS
@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.all), 4], ids="R{}".format)
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
def test_a_corrupted_combine_is_noticed(wrong_team: Team, flat: bool) -> None:
    wrong_team.run(2, jobs_autograd.corrupted, flat)


@FORMS
def test_as_close_as_the_roundings_allow(team: Team, flat: bool) -> None:
    team.run(3, jobs_autograd.bounded, flat)


@FORMS
def test_ids_and_weights_of_other_types(team: Team, flat: bool) -> None:
    team.run(3, jobs_autograd.other_types, flat)


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


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (lambda: autograd.get_ep_buffer_size_hint(8, 64, 1, 4, 65), "num_topk: 65 given; .* 64"),
        (lambda: autograd.get_ep_buffer_size_hint(8, "64", 1, 4, 2), "hidden: '64' of type str"),
        (lambda: autograd.get_flat_buffer_size_hint(8, 64, 1, 0), "num_topk: 0 given; .* 1 to 64"),
        (lambda: autograd.get_flat_buffer_size_hint(8, None, 1, 2), "hidden: None of type NoneT"),
    ],
)
def test_size_hints_refuse(hint: Callable[[], int], words: str) -> None:
    with pytest.raises(moewire.InvalidArgument, match=words):
        hint()


@FORMS
def test_forwards_refuse_what_is_no_buffer(flat: bool) -> None:
    given: list[Any] = [None, torch.ones((1, 8)).bfloat16(), torch.zeros((1, 1), dtype=torch.int64)]
    given.append(torch.ones((1, 1)))
    dispatch = autograd.dispatch_flat if flat else autograd.dispatch
    given += [8, 1] if flat else [None, 8, 1, -1]
    with pytest.raises(moewire.InvalidArgument, match="buffer: NoneType given"):
        dispatch(*given)


@pytest.mark.parametrize("copies", [False, True])
def test_a_flat_graph_holds_no_received_rows_twice(copies: bool) -> None:
    """Nor the workspace: what autograd keeps of a dispatch is its routing and the rows it gave."""
    size = autograd.get_flat_buffer_size_hint(8, 64, 1, 2)
    buffer = moewire.Buffer.from_store(dist.HashStore(), 0, 1, size, copy_outputs=copies)
    received = []
    fill = FlatRows.fill

    def watched(rows: FlatRows, *given: Any) -> None:
        fill(rows, *given)
        assert rows.tensors is not None
        received.append(weakref.ref(rows.tensors.data))

    with buffer, pytest.MonkeyPatch.context() as patch:
        patch.setattr(FlatRows, "fill", watched)
        x = torch.ones((4, 64)).bfloat16().requires_grad_()
        idx, weights = torch.zeros((4, 2), dtype=torch.int64), torch.ones((4, 2))
        rows, routing = autograd.dispatch_flat(buffer, x, idx, weights, 8, 4)
        out = autograd.combine_flat(rows * 2, routing)
        assert [one() for one in received] == [None]
        out.float().sum().backward()
        assert x.grad is not None and torch.equal(x.grad, torch.full_like(x, 2))


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
    there = _piggyback.with_scalars(rows, numbers)
    assert there.shape == (2000, 8 + _piggyback.num_values(3)) and torch.equal(there[:, :8], rows)
    back = _piggyback.scalars_of(there, 8, 3)
    assert torch.equal(back.nan_to_num(7.0), numbers.nan_to_num(7.0))
