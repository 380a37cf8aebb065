"""Statistics and traces of buffers on CUDA, over the emulated driver or on a device."""

from __future__ import annotations

import re
import threading

import pytest

from harness import cuda_device, emulator, jobs_cuda, jobs_cuda_observe
from harness.jobs_cuda import Place
from harness.team import Team


@pytest.mark.parametrize("size", [1, 3], ids="R={}".format)
def test_stats(place: Place, seed: int, size: int) -> None:
    jobs_cuda.in_threads(
        size, lambda rank, make: jobs_cuda_observe.stats(place, make, rank, size, seed)
    )


def test_no_record(place: Place, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOEWIRE_RECORD", "0")
    jobs_cuda.in_threads(
        1, lambda rank, make: jobs_cuda_observe.not_recorded(place, make, rank, seed)
    )


def test_traces(place: Place, seed: int) -> None:
    together = threading.Barrier(2)
    found = jobs_cuda.in_threads(
        2, lambda rank, make: jobs_cuda_observe.traces(place, make, rank, 2, seed, together)
    )
    names = {event["name"] for event in found[0]["traceEvents"] if event["ph"] == "X"}
    assert names >= {"dispatch prepare", "dispatch send", "dispatch receive", "combine reduce"}


def test_a_slow_rank_is_named_while_nothing_is_called(team: Team) -> None:
    driver = "" if cuda_device.wanted() else str(emulator.driver())
    lines = team.run(2, jobs_cuda_observe.slow, driver)[0]
    slow = r"rank 1 \(process \d+, epoch 1\) is slow: rank 0 has waited .* for it in dispatch of "
    assert any(re.match(slow + "operation 0: its data has not come", line) for line in lines)
