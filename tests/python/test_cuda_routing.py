"""Routings on CUDA: the jobs of the CPU's tests, over the emulated device or a real one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness import (
    cuda_device,
    emulator,
    jobs_autograd_routed,
    jobs_cuda,
    jobs_cuda_routing,
    jobs_elastic,
    jobs_hybrid,
    jobs_routing,
)
from harness import jobs_deep_ep_normal as normal
from harness import jobs_deep_ep_refusals as refusals
from harness.carry_over import Ranks
from harness.cuda_place import Place
from harness.team import Team


@pytest.fixture(scope="module")
def ranks(team: Team) -> Ranks:
    return Ranks(team, "" if cuda_device.wanted() else str(emulator.driver()))


@pytest.mark.parametrize(("size", "count"), [(1, 1), (2, 2), (3, 1)])
def test_random_cases(ranks: Ranks, size: int, count: int) -> None:
    ranks.run(size, jobs_routing.random_cases, count, timeout=240)


@pytest.mark.parametrize("size", [2, 3])
def test_edges(ranks: Ranks, size: int) -> None:
    ranks.run(size, jobs_routing.edges, timeout=240)


@pytest.mark.parametrize(
    ("size", "job", "args"),
    [
        (2, jobs_routing.many_steps, (20,)),
        (3, jobs_routing.without_ids, ()),
        (2, jobs_routing.held, (12,)),
        (2, jobs_routing.old_epoch, ()),
        (2, jobs_routing.life, ()),
        (2, jobs_autograd_routed.every_form, (2,)),
        (2, jobs_autograd_routed.held, (8,)),
        (3, normal.grid, (normal.CONTENTS[0], True)),
        (2, normal.handles, ()),
        (2, normal.biases, ()),
        (2, normal.worst_case, ()),
        (2, normal.both_modes, ()),
        (3, jobs_elastic.compact, ()),
        (2, jobs_elastic.expanded, ()),
        (2, jobs_hybrid.maps, ()),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_job(ranks: Ranks, size: int, job: Callable[..., Any], args: tuple[Any, ...]) -> None:
    ranks.run(size, job, *args, timeout=240)


def test_a_rank_is_killed(ranks: Ranks) -> None:
    seconds = ranks.run(3, jobs_routing.killed, dies=frozenset({1}))
    assert max(seconds[0], seconds[2]) < 10, seconds


@pytest.mark.parametrize(("use", "how"), [("scatter", "killed"), ("gather", "hung")])
def test_a_rank_is_lost_meanwhile(ranks: Ranks, use: str, how: str) -> None:
    dies = frozenset({1} if how == "killed" else ())
    seconds = ranks.run(3, jobs_routing.lost, use, how, dies=dies, timeout=60)
    assert max(seconds[0], seconds[2]) < jobs_routing.HANG_US / 1e6 + 8, seconds


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("K", ("num_topk is", "2", "3")),
        ("E", ("num_experts", "4", "8")),
        ("row", ("hidden", "8 ", "16 ")),
        ("weights", ("extra_row_bytes", "0 ", "8 ")),
        ("call", ("the call", "scatter", "gather")),
    ],
)
def test_ranks_that_disagree(ranks: Ranks, what: str, words: tuple[str, ...]) -> None:
    """Words of the device, which knows sizes by what a dispatch calls them."""
    for text in ranks.run(2, jobs_routing.disagreement, what):
        assert all(word in text for word in words), text


def test_a_rank_that_does_not_come_is_named(ranks: Ranks) -> None:
    for said in ranks.run(3, refusals.lost)[:2]:
        assert "2" in said and "nothing" not in said, said


def test_captures_and_streams(place: Place) -> None:
    jobs_cuda.in_threads(1, lambda rank, make: jobs_cuda_routing.captured(place, make))


def test_an_interrupted_wait(team: Team) -> None:
    driver = "" if cuda_device.wanted() else str(emulator.driver())
    team.run(2, jobs_cuda_routing.interrupted, driver)
