"""CUDA graphs through the real Buffer, over the emulated driver or on a device (test_cuda.py)."""

from __future__ import annotations

import os

from harness import cuda_device, emulator, jobs_cuda_graphs
from harness.team import Team

LENGTHS = [1, 2, 3, 7]
# Between processes that take turns on one device; the engine's TestReplays has a thousand.
TIMES = int(os.environ.get("MOEWIRE_CUDA_REPLAYS") or (50 if cuda_device.asked() else 2))
TIMEOUT_S = 300.0


def driver() -> str:
    return "" if cuda_device.wanted() else str(emulator.driver())


def test_graphs_of_each_length_among_plain_calls(team: Team) -> None:
    times = team.run(2, jobs_cuda_graphs.replayed, driver(), LENGTHS, TIMES, timeout=TIMEOUT_S)
    assert times == [TIMES, TIMES]


def test_a_graph_of_calls_that_finish_aside(team: Team) -> None:
    team.run(2, jobs_cuda_graphs.aside, driver(), timeout=TIMEOUT_S)


def test_graphs_run_in_later_epochs(team: Team) -> None:
    team.run(2, jobs_cuda_graphs.across_updates, driver(), timeout=TIMEOUT_S)


def test_a_replay_masks_who_has_stopped(team: Team) -> None:
    team.run(2, jobs_cuda_graphs.stopped, driver(), timeout=TIMEOUT_S)
