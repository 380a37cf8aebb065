"""DeepEP's and Mooncake's names, called as engines call them, with ranks of several hosts.

Only variables of the environment say that there are several hosts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness import cuda_device, emulator, jobs_cuda_compat, jobs_cuda_deep_ep, jobs_deep_ep
from harness import jobs_deep_ep_clients as clients
from harness.team import Team
from hosts import jobs_clients
from hosts.layout import Variables, hosts, placed

TIMEOUT_S = 500.0  # processes start, and kernels run on busy processors
# No rank is unresponsive for that long.
MAX_WAIT_US = str(600_000_000)


@pytest.fixture(scope="module")
def driver() -> str:
    return "" if cuda_device.wanted() else str(emulator.driver())


def places(layout: str, **variables: str) -> list[Variables]:
    return hosts(layout, MOEWIRE_UNRESPONSIVE_AFTER_US=MAX_WAIT_US, **variables)


@pytest.mark.parametrize("layout", ["0|1", pytest.param("0|12", marks=pytest.mark.all)])
@pytest.mark.parametrize("job", [clients.like_vllm, clients.like_sglang], ids=lambda j: j.__name__)
def test_called_like_engines(team: Team, layout: str, job: Callable[..., Any]) -> None:
    size = len(layout.replace("|", ""))
    team.run(size, placed, places(layout), jobs_clients.remote, job, timeout=TIMEOUT_S)


def test_all_options(team: Team) -> None:
    job = jobs_clients.remote, jobs_deep_ep.grid, 512, 8, False
    assert team.run(2, placed, places("0|1"), *job, timeout=TIMEOUT_S) == [10] * 2


@pytest.mark.all
@pytest.mark.parametrize("layout", ["0|1", "0|12"])
@pytest.mark.parametrize("job", [clients.like_vllm, clients.like_sglang], ids=lambda j: j.__name__)
def test_called_like_engines_on_cuda(
    team: Team, driver: str, layout: str, job: Callable[..., Any]
) -> None:
    size = len(layout.replace("|", ""))
    over = jobs_cuda_deep_ep.over_device, driver, jobs_clients.remote, job
    team.run(size, placed, places(layout), *over, timeout=TIMEOUT_S)


@pytest.mark.all
def test_all_options_on_cuda(team: Team, driver: str) -> None:
    job = jobs_clients.remote, jobs_deep_ep.grid, 512, 8, False
    over = jobs_cuda_deep_ep.over_device, driver, *job
    assert team.run(2, placed, places("0|1"), *over, timeout=TIMEOUT_S) == [10] * 2


@pytest.mark.all
def test_a_recorded_layer_replays_on_cuda(team: Team, driver: str) -> None:
    job = jobs_clients.remote, jobs_cuda_deep_ep.recorded, driver
    team.run(2, placed, places("0|1"), *job, timeout=TIMEOUT_S)


@pytest.mark.all
@pytest.mark.parametrize("masked", [False, True], ids=["no mask", "mask"])
def test_a_lost_rank_on_cuda(team: Team, driver: str, masked: bool) -> None:
    job = jobs_clients.remote, jobs_cuda_deep_ep.lost, masked  # the survivors have reached the rank
    # that dies
    over = jobs_cuda_deep_ep.over_device, driver, *job
    team.run(3, placed, places("01|2"), *over, timeout=TIMEOUT_S, dies=frozenset({2}))


@pytest.mark.all
def test_mooncake_on_cuda(team: Team, driver: str) -> None:
    job = jobs_clients.remote, jobs_cuda_compat.mooncake, driver, 2
    assert all(team.run(2, placed, places("0|1"), *job, timeout=TIMEOUT_S))
