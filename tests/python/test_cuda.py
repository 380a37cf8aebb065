"""The real Buffer on CUDA, against the oracle: over the emulated driver, or on a device.

The same tests run on a device, with torch's own tensors and streams, where MOEWIRE_CUDA_TEST is
libcuda.so.1.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from harness import (
    cuda_device,
    emulator,
    jobs_cuda,
    jobs_cuda_autograd,
    jobs_cuda_flat,
    jobs_cuda_leaked,
    jobs_cuda_order,
    jobs_cuda_quick,
    jobs_cuda_steady,
)
from harness.emulated import Emulated
from harness.jobs_cuda import Place
from harness.team import Team
from moewire._ep import results

ON_DEVICE = cuda_device.asked()
# A device has room for more ranks, and time for more cases. There it is the oracle that takes
# the time, for all ranks in one process at once: R * NUM_CASES is what it can do.
SIZES, NUM_CASES = ([1, 2, 4, 8], 80) if ON_DEVICE else ([1, 2, 3], 12)


def num_cases(size: int) -> int:
    """For so many ranks in one process."""
    return NUM_CASES // size if ON_DEVICE else NUM_CASES


EMULATED_ONLY = pytest.mark.skipif(
    ON_DEVICE, reason="makes calls of the driver fail, which the emulator can"
)


def driver() -> str:
    """The emulated one for processes; "" for that of the machine."""
    return "" if cuda_device.wanted() else str(emulator.driver())


@pytest.mark.parametrize("size", SIZES, ids="R={}".format)
def test_random_cases_of_threads(place: Place, seed: int, size: int) -> None:
    count = num_cases(size)
    counts = jobs_cuda.in_threads(
        size, lambda rank, make: jobs_cuda.random_cases(place, make, rank, size, seed, count)
    )
    assert min(counts) >= count


def test_rows_in_order_of_rank_and_token(place: Place, seed: int) -> None:
    counts = jobs_cuda.in_threads(
        3, lambda rank, make: jobs_cuda.random_cases(place, make, rank, 3, seed, 6, ordered=True)
    )
    assert min(counts) >= 6


@pytest.mark.parametrize("size", [2, 4] if ON_DEVICE else [2], ids="R={}".format)
def test_random_cases_of_processes(team: Team, size: int) -> None:
    count = NUM_CASES if ON_DEVICE else 8
    counts = team.run(
        size, jobs_cuda.in_process, driver(), count, timeout=jobs_cuda.TIMEOUT_SECONDS
    )
    assert min(counts) >= count


@EMULATED_ONLY
@pytest.mark.parametrize("without", ["", "0-1"], ids=["atomics", "none"])
def test_random_cases_of_devices(team: Team, without: str) -> None:
    """A process for each device. Without atomics rows are placed by counts, or some were lost."""
    job = jobs_cuda.in_process_on_its_device
    counts = team.run(2, job, driver(), 6, without, timeout=jobs_cuda.TIMEOUT_SECONDS)
    assert min(counts) >= 6


@EMULATED_ONLY
def test_operations_only_launch(place: Emulated, seed: int) -> None:
    """Nothing waits for the device, asks how far it is, or allocates of the driver."""
    asked, together = jobs_cuda_steady.Asked(place), threading.Barrier(2)
    jobs_cuda.in_threads(
        2, lambda rank, make: jobs_cuda_steady.launches_only(asked, make, rank, seed, together)
    )
    assert asked.waits == []
    assert set(asked.calls) <= jobs_cuda_steady.LAUNCHING, asked.calls
    launches = 6 * 2 * jobs_cuda_steady.NUM_OPERATIONS
    assert asked.calls["cuLaunchKernel"] >= launches, asked.calls


@EMULATED_ONLY
def test_random_cases_by_fabric_handles(team: Team) -> None:
    counts = team.run(
        2, jobs_cuda.in_process_by_fabric, driver(), 4, timeout=jobs_cuda.TIMEOUT_SECONDS
    )
    assert min(counts) >= 4


def test_views_outlive_their_buffer(place: Place, seed: int) -> None:
    jobs_cuda.in_threads(2, lambda rank, make: jobs_cuda.outlived(place, make, rank, seed))
    left = place.left()
    assert not any("allocation" in line or "range" in line for line in left), left


def test_copied_outputs(place: Place, seed: int) -> None:
    jobs_cuda.in_threads(2, lambda rank, make: jobs_cuda.copied(place, make, rank, seed))


def test_operations_on_two_streams_keep_their_order(place: Place, seed: int) -> None:
    jobs_cuda.in_threads(2, lambda rank, make: jobs_cuda.two_streams(place, make, rank, seed))


def test_dropped_hooks_and_handles(place: Place, seed: int) -> None:
    jobs_cuda.in_threads(2, lambda rank, make: jobs_cuda.dropped(place, make, rank, seed))


def test_hooks_of_two_combines(place: Place, seed: int) -> None:
    jobs_cuda.in_threads(
        2, lambda rank, make: jobs_cuda_order.combined_twice(place, make, rank, seed)
    )


def test_a_recorded_graph_replays(place: Place, seed: int) -> None:
    together = threading.Barrier(2)
    jobs_cuda.in_threads(
        2, lambda rank, make: jobs_cuda.recorded(place, make, rank, seed, together)
    )


@pytest.mark.parametrize("size", [1, 2, 3], ids="R={}".format)
def test_flat_cases(place: Place, seed: int, size: int) -> None:
    counts = jobs_cuda.in_threads(
        size, lambda rank, make: jobs_cuda_flat.random_cases(place, make, rank, size, seed, 8)
    )
    assert min(counts) >= 6


def test_flat_views_outlive_their_buffer(place: Place, seed: int) -> None:
    jobs_cuda.in_threads(1, lambda rank, make: jobs_cuda_flat.outlived(place, make, rank, seed))
    left = place.left()
    assert not any("allocation" in line or "range" in line for line in left), left


@pytest.mark.parametrize("how", jobs_cuda_flat.CALLS, ids=lambda how: "-".join(how) or "plain")
def test_copied_flat_rows(place: Place, seed: int, how: dict[str, bool]) -> None:
    jobs_cuda.in_threads(2, lambda rank, make: jobs_cuda_flat.copied(place, make, rank, seed, how))


@pytest.mark.parametrize(
    "job",
    [
        jobs_cuda_flat.kept,
        jobs_cuda_flat.kept_elsewhere,
        jobs_cuda_flat.launched_only,
        jobs_cuda_flat.asked_in_capture,
        jobs_cuda_flat.hooked_in_capture,
    ],
    ids=lambda job: job.__name__,
)
def test_flat_rows_of_one_rank(place: Place, seed: int, job: Any) -> None:
    jobs_cuda.in_threads(1, lambda rank, make: job(place, make, rank, seed))


def test_a_recorded_graph_of_flat_rows_replays(place: Place, seed: int) -> None:
    together = threading.Barrier(2)
    jobs_cuda.in_threads(
        2, lambda rank, make: jobs_cuda_flat.recorded(place, make, rank, seed, together)
    )


def test_debug_fill(place: Place, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOEWIRE_DEBUG", "1")
    jobs_cuda.in_threads(2, lambda rank, make: jobs_cuda.debug_fill(place, make, rank, seed))


def test_more_rounds(place: Place, seed: int) -> None:
    together = threading.Barrier(2)
    jobs_cuda.in_threads(
        2, lambda rank, make: jobs_cuda.more_rounds(place, make, rank, seed, together)
    )


@pytest.mark.parametrize(
    "job",
    [
        jobs_cuda_quick.refused_once_known,
        jobs_cuda_quick.fresh_results,
        jobs_cuda_quick.views_of_every_shape,
    ],
    ids=lambda job: job.__name__,
)
def test_what_calls_keep(place: Place, seed: int, job: Any) -> None:
    jobs_cuda.in_threads(1, lambda rank, make: job(place, make, rank, seed))


def test_a_dispatch_that_fails_once_launched_is_released(
    place: Place, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, failures = results.copies_of_all, threading.local()

    def fail(*args: Any) -> Any:
        failures.number = getattr(failures, "number", 0) + 1
        if failures.number <= 10:
            raise MemoryError("no room for copies")
        return whole(*args)

    monkeypatch.setattr(results, "copies_of_all", fail)
    jobs_cuda.in_threads(
        2, lambda rank, make: jobs_cuda_order.failed_behind_launch(place, make, rank, seed)
    )


def test_what_is_read_aside_is_kept_whatever_fails(place: Place, seed: int) -> None:
    jobs_cuda.in_threads(
        1, lambda rank, make: jobs_cuda_order.kept_after_failures(place, make, rank, seed)
    )


def test_dropped_handles_are_released_in_order(place: Place, seed: int) -> None:
    jobs_cuda.in_threads(
        1, lambda rank, make: jobs_cuda_order.released_in_order(place, make, rank, seed)
    )


def test_the_order_around_a_capture(place: Place, seed: int) -> None:
    jobs_cuda.in_threads(
        1, lambda rank, make: jobs_cuda_order.ordered_around_a_capture(place, make, rank, seed)
    )


def test_handles_that_are_collected_in_a_launch(place: Place, seed: int) -> None:
    jobs_cuda.in_threads(
        1, lambda rank, make: jobs_cuda_order.collected_in_a_launch(place, make, rank, seed)
    )


def test_one_operation_is_launched_at_a_time(place: Place, seed: int) -> None:
    jobs_cuda.in_threads(
        1, lambda rank, make: jobs_cuda_order.launched_alone(place, make, rank, seed)
    )


def test_outputs_are_kept_for_the_streams_that_use_them(place: Place, seed: int) -> None:
    jobs_cuda.in_threads(1, lambda rank, make: jobs_cuda_order.kept(place, make, rank, seed))


@EMULATED_ONLY
def test_a_close_that_failed_is_repeated(place: Emulated, seed: int) -> None:
    failed = jobs_cuda.in_threads(
        1, lambda rank, make: jobs_cuda_order.closed_again(place, make, rank, seed)
    )
    assert failed[0] > 0


def test_a_close_that_failed_is_repeated_by_dropping(place: Place, seed: int) -> None:
    jobs_cuda.in_threads(
        1, lambda rank, make: jobs_cuda_order.dropped_after_close(place, make, rank, seed)
    )


@EMULATED_ONLY
@pytest.mark.parametrize(
    "job",
    [
        jobs_cuda_leaked.not_retried_in_a_collection,
        jobs_cuda_leaked.retried_at_a_close,
        jobs_cuda_leaked.dropped_in_a_capture,
        jobs_cuda_leaked.closed_by_another,
        jobs_cuda_leaked.closed_before_views,
        jobs_cuda_leaked.forgotten_while_filled,
    ],
    ids=lambda job: job.__name__,
)
def test_memory_of_a_closed_buffer(place: Emulated, seed: int, job: Any) -> None:
    jobs_cuda.in_threads(1, lambda rank, make: job(place, make, rank, seed))


@EMULATED_ONLY
def test_leaked_memory_is_given_back_at_the_end(environment: dict[str, str]) -> None:
    program = Path(__file__).with_name("programs") / "leaked.py"
    done = subprocess.run(
        [sys.executable, str(program), str(emulator.driver())],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    kept, ended = done.stdout.splitlines()
    assert kept != "kept: []" and ended == "at the end: []", done.stdout


def test_a_close_that_failed_beside_another_one(place: Place, seed: int) -> None:
    jobs_cuda.in_threads(
        1, lambda rank, make: jobs_cuda_order.closed_by_two(place, make, rank, seed)
    )


def test_what_gradients_do_not_have_on_cuda_is_refused(place: Place, seed: int) -> None:
    jobs_cuda.in_threads(1, lambda rank, make: jobs_cuda_autograd.refused(place, make, rank, seed))


def test_a_flat_graph_keeps_no_workspace(place: Place, seed: int) -> None:
    jobs_cuda.in_threads(1, lambda rank, make: jobs_cuda_autograd.kept(place, make, rank, seed))


@pytest.mark.skipif(ON_DEVICE, reason="it is a suite of its own on a device")
def test_what_calls_cost_the_host_is_measured(environment: dict[str, str]) -> None:
    program = Path(__file__).with_name("programs") / "cuda_host_cost.py"
    arguments = [str(program), "--emulator", str(emulator.driver()), "--times", "3"]
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    calls = json.loads(done.stdout)["calls_us"]
    assert len(calls) == 5 and all(us > 0 for us in calls.values()), calls
