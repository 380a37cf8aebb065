"""Mooncake's names on CUDA, over the emulated driver or on a device (test_cuda.py)."""

from __future__ import annotations

import pytest

from harness import cuda_device, emulator, jobs_cuda_compat
from harness.team import Team

SECONDS = 180  # processes start, and kernels run on the CPU


@pytest.fixture(scope="module")
def driver() -> str:
    return "" if cuda_device.wanted() else str(emulator.driver())


def test_calls_of_mooncakes_clients(team: Team, driver: str) -> None:
    assert min(team.run(2, jobs_cuda_compat.mooncake, driver, 6, timeout=SECONDS)) >= 6


def test_where_it_lies(team: Team, driver: str) -> None:
    team.run(1, jobs_cuda_compat.chosen_device, driver, timeout=SECONDS)
