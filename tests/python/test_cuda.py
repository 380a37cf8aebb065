"""The real Buffer over the emulated CUDA driver, against the oracle."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import emulator, jobs_cuda, jobs_cuda_order
from harness.emulated import Emulated
from harness.team import Team
from moewire import _gpu, _results, _torch_cuda
from moewire._cuda_report import DRIVER_VARIABLE
from moewire._gpu_config import CODE_VARIABLE


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Emulated]:
    """The emulated device, behind this process's Buffers."""
    for name in (DRIVER_VARIABLE, CODE_VARIABLE):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(_torch_cuda, "place", _torch_cuda.place)
    one = jobs_cuda.use(str(emulator.driver()), str(tmp_path))
    yield one
    one.forget()


@pytest.mark.parametrize("size", [1, 2, 3], ids="R={}".format)
def test_random_cases_of_threads(place: Emulated, seed: int, size: int) -> None:
    counts = jobs_cuda.in_threads(
        size, lambda rank, make: jobs_cuda.random_cases(place, make, rank, size, seed, 12)
    )
    assert min(counts) >= 12


def test_random_cases_of_processes(team: Team) -> None:
    assert min(team.run(2, jobs_cuda.in_process, str(emulator.driver()), 8)) >= 8


def test_views_outlive_their_buffer(place: Emulated, seed: int) -> None:
    jobs_cuda.in_threads(2, lambda rank, make: jobs_cuda.outlived(place, make, rank, seed))
    left = place.left()
    assert not any("allocation" in line or "range" in line for line in left), left


def test_copied_outputs(place: Emulated, seed: int) -> None:
    jobs_cuda.in_threads(2, lambda rank, make: jobs_cuda.copied(place, make, rank, seed))


def test_operations_on_two_streams_keep_their_order(place: Emulated, seed: int) -> None:
    jobs_cuda.in_threads(2, lambda rank, make: jobs_cuda.two_streams(place, make, rank, seed))


def test_dropped_hooks_and_handles(place: Emulated, seed: int) -> None:
    jobs_cuda.in_threads(2, lambda rank, make: jobs_cuda.dropped(place, make, rank, seed))


def test_a_recorded_graph_replays(place: Emulated, seed: int) -> None:
    together = threading.Barrier(2)
    jobs_cuda.in_threads(
        2, lambda rank, make: jobs_cuda.recorded(place, make, rank, seed, together)
    )


def test_what_is_not_on_cuda_is_refused(place: Emulated, seed: int) -> None:
    jobs_cuda.in_threads(1, lambda rank, make: jobs_cuda.refused(place, make, rank, seed))


def test_a_dispatch_that_fails_once_launched_is_released(
    place: Emulated, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, failures = _results.copies_on_stream, threading.local()

    def fail(*args: Any) -> Any:
        failures.number = getattr(failures, "number", 0) + 1
        if failures.number <= 10:
            raise MemoryError("no room for copies")
        return whole(*args)

    monkeypatch.setattr(_gpu, "copies_on_stream", fail)
    jobs_cuda.in_threads(
        2, lambda rank, make: jobs_cuda_order.failed_behind_launch(place, make, rank, seed)
    )


def test_dropped_handles_are_released_in_order(place: Emulated, seed: int) -> None:
    jobs_cuda.in_threads(
        1, lambda rank, make: jobs_cuda_order.released_in_order(place, make, rank, seed)
    )


def test_one_operation_is_launched_at_a_time(place: Emulated, seed: int) -> None:
    jobs_cuda.in_threads(
        1, lambda rank, make: jobs_cuda_order.launched_alone(place, make, rank, seed)
    )


def test_outputs_are_kept_for_the_streams_that_use_them(place: Emulated, seed: int) -> None:
    jobs_cuda.in_threads(1, lambda rank, make: jobs_cuda_order.kept(place, make, rank, seed))
