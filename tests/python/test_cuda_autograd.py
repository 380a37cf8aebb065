"""Gradients through dispatch and combine on CUDA, emulated or on a device (test_cuda.py)."""

from __future__ import annotations

import pytest

from harness import cuda_device, emulator, jobs_autograd, jobs_cuda_autograd
from harness.team import Team

SECONDS = 180  # torch imports much for its first gradients
FORMS = pytest.mark.parametrize("flat", [False, True], ids=["packed", "flat"])


@pytest.fixture(scope="module")
def driver() -> str:
    return "" if cuda_device.wanted() else str(emulator.driver())


@FORMS
@pytest.mark.parametrize("size", [1, 3], ids="R{}".format)
def test_every_bit_of_the_cpu(team: Team, driver: str, size: int, flat: bool) -> None:
    team.run(size, jobs_cuda_autograd.same_as_cpu, driver, flat, timeout=SECONDS)


def test_all_ranks_learn_that_one_has_more(team: Team, driver: str) -> None:
    job = jobs_cuda_autograd.over_device, driver, jobs_cuda_autograd.more_rounds
    team.run(2, *job, timeout=SECONDS)


@FORMS
def test_as_close_as_the_roundings_allow(team: Team, driver: str, flat: bool) -> None:
    """To one process, which computes in float64."""
    job = jobs_autograd.bounded, flat
    team.run(3, jobs_cuda_autograd.over_device, driver, *job, timeout=SECONDS)


@FORMS
def test_ids_and_weights_of_other_types(team: Team, driver: str, flat: bool) -> None:
    job = jobs_autograd.other_types, flat
    team.run(2, jobs_cuda_autograd.over_device, driver, *job, timeout=SECONDS)


@FORMS
def test_parts_of_the_graph(team: Team, driver: str, flat: bool) -> None:
    job = jobs_autograd.parts_of_the_graph, flat
    team.run(3, jobs_cuda_autograd.over_device, driver, *job, timeout=SECONDS)


@FORMS
def test_an_exception_in_a_backward_leaves_nothing_open(
    team: Team, driver: str, flat: bool
) -> None:
    """On every rank: where some go on, the device ends their buffer until an update."""
    job = jobs_autograd.experts_that_raise, flat, True
    team.run(3, jobs_cuda_autograd.over_device, driver, *job, timeout=SECONDS)


@FORMS
def test_a_rank_dies_between_forward_and_backward(team: Team, driver: str, flat: bool) -> None:
    job = jobs_autograd.lost, flat
    team.run(3, jobs_cuda_autograd.over_device, driver, *job, timeout=SECONDS, dies=frozenset({2}))
