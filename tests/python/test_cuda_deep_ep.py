"""DeepEP's interface on CUDA, over the emulated driver or on a device (test_cuda.py)."""

from __future__ import annotations

import pytest

from harness import cuda_device, emulator, jobs_cuda_deep_ep, jobs_deep_ep
from harness import jobs_deep_ep_clients as clients
from harness.team import Team

SECONDS = 180  # processes start, and kernels run on the CPU


@pytest.fixture(scope="module")
def driver() -> str:
    return "" if cuda_device.wanted() else str(emulator.driver())


@pytest.mark.parametrize(("size", "hidden", "experts"), [(2, 512, 8), (3, 512, 9)])
@pytest.mark.parametrize("noisy", [False, True], ids=["traceable", "noisy"])
def test_grid(team: Team, driver: str, size: int, hidden: int, experts: int, noisy: bool) -> None:
    job = jobs_deep_ep.grid, hidden, experts, noisy
    assert (
        team.run(size, jobs_cuda_deep_ep.over_device, driver, *job, timeout=SECONDS) == [10] * size
    )


@pytest.mark.parametrize("size", [2, 3], ids="R={}".format)
@pytest.mark.parametrize("job", [clients.like_vllm, clients.like_sglang], ids=lambda j: j.__name__)
def test_called_like_engines(team: Team, driver: str, size: int, job: object) -> None:
    team.run(size, jobs_cuda_deep_ep.over_device, driver, job, timeout=SECONDS)


def test_mask_has_one_for_masked(team: Team, driver: str) -> None:
    nobody, last = [0, 0, 0], [0, 0, 1]
    for seen in team.run(3, jobs_cuda_deep_ep.over_device, driver, clients.mask, timeout=SECONDS)[
        :2
    ]:
        assert seen == [nobody, last, last, nobody, nobody]


@pytest.mark.parametrize("masked", [False, True], ids=["no mask", "mask"])
def test_a_lost_rank(team: Team, driver: str, masked: bool) -> None:
    job = jobs_cuda_deep_ep.lost, masked
    team.run(3, jobs_cuda_deep_ep.over_device, driver, *job, timeout=SECONDS, dies=frozenset({2}))


@pytest.mark.parametrize(
    "job",
    [
        jobs_cuda_deep_ep.chosen_device,
        jobs_cuda_deep_ep.refused,
        pytest.param(
            jobs_cuda_deep_ep.streams,
            marks=pytest.mark.skipif(
                cuda_device.asked(), reason="reads the numbers that the emulator gives its streams"
            ),
        ),
    ],
    ids=lambda job: job.__name__,
)
def test_one_rank(team: Team, driver: str, job: object) -> None:
    team.run(1, jobs_cuda_deep_ep.over_device, driver, job, timeout=SECONDS)


def test_wait_statistics(team: Team, driver: str) -> None:
    job = jobs_cuda_deep_ep.wait_statistics
    assert sum(team.run(2, jobs_cuda_deep_ep.over_device, driver, job, timeout=SECONDS)) > 0


def test_a_recorded_layer_replays(team: Team, driver: str) -> None:
    team.run(2, jobs_cuda_deep_ep.recorded, driver, timeout=SECONDS)
