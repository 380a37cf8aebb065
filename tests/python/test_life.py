"""How objects end, and details of the objects."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import jobs_leave, jobs_life, jobs_wait
from harness.carry_over import CPU_ALONE, Ranks
from harness.team import Team

JOBS = (
    jobs_life.deadline,
    jobs_life.peer_closes,
    jobs_life.close_wakes_a_waiter,
    jobs_life.interrupt,
    jobs_life.interrupted_hook,
    jobs_life.views_outlive,
    jobs_life.dropped_buffers_leave_nothing,
    jobs_life.debug_fill,
    jobs_life.copies,
    jobs_life.handle_and_event,
    jobs_life.more_rounds,
    jobs_life.active_ranks,
    jobs_life.counters,
    jobs_leave.closed_twice,
    jobs_leave.fails_half_way,
    jobs_leave.all_fail_half_way,
    jobs_wait.waits_do_not_block,
    jobs_wait.combine_buffer_still_read,
    jobs_wait.threads_on_buffers,
)


@pytest.mark.parametrize(
    "job", [job for job in JOBS if job not in CPU_ALONE], ids=lambda job: job.__name__
)
def test_two_ranks(ranks: Ranks, job: Callable[..., Any]) -> None:
    ranks.run(2, job)


@pytest.mark.parametrize(
    "job", [job for job in JOBS if job in CPU_ALONE], ids=lambda job: job.__name__
)
def test_two_ranks_on_the_processor(team: Team, job: Callable[..., Any]) -> None:
    team.run(2, job)


def test_an_inactive_rank_is_left_out(ranks: Ranks) -> None:
    ranks.run(3, jobs_wait.inactive_rank)


def test_a_killed_rank_is_noticed(ranks: Ranks) -> None:
    seconds = ranks.run(3, jobs_life.peer_is_killed, dies=frozenset({2}))
    assert max(seconds[:2]) < 5.0, seconds


@pytest.mark.parametrize("size", [1, 2], ids="R={}".format)
def test_a_forked_child_gets_an_error(ranks: Ranks, size: int) -> None:
    for texts in ranks.run(size, jobs_life.forked):
        assert len(texts) == 2
        assert all("ForkedError" in text and "spawn" in text for text in texts), texts


WAYS = ("hook", "dispatch", "combine")


@pytest.mark.all
def test_interpreters_end_in_an_operation(environment: dict[str, str], tmp_path: Path) -> None:
    """They end at once and well, though a thread may still wait; the other rank goes on."""
    program = str(Path(__file__).with_name("programs") / "leave.py")
    ranks = [
        subprocess.Popen(
            [sys.executable, program, *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for arguments in (["0", str(tmp_path), *WAYS], *(["1", str(tmp_path), how] for how in WAYS))
    ]
    try:
        texts = [process.communicate(timeout=100)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0] * len(ranks), texts
    assert all(f"rank 0 went on after {how}\n" in texts[0] for how in WAYS), texts
    assert all("rank 1 ends\n" in text and "Fatal" not in text for text in texts[1:]), texts
