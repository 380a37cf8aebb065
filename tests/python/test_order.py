"""Any order of dispatches, combines and releases."""

from __future__ import annotations

import os

import pytest

from harness import jobs_order
from harness.carry_over import Ranks
from harness.team import Team

PATTERNS = ("dcdc", "ddcc", "dcC", "dcCC", "dr", "drdc", "ddrc", "ddcr", "ddcCc", "d")


@pytest.mark.parametrize("letters", PATTERNS)
def test_pattern(ranks: Ranks, letters: str) -> None:
    ranks.run(ranks.few(3, 2), jobs_order.pattern, letters)


@pytest.mark.parametrize("num_slots", [1, 2, 3, 5], ids="slots={}".format)
def test_pattern_with_other_numbers_of_slots(ranks: Ranks, num_slots: int) -> None:
    ranks.run(2, jobs_order.pattern, "dcdcC", num_slots)


def test_two_hooks_in_flight(ranks: Ranks) -> None:
    ranks.run(2, jobs_order.hooks_in_flight)


def test_combine_runs_a_hook_that_was_dropped(ranks: Ranks) -> None:
    ranks.run(2, jobs_order.dropped_hook)


def test_hook_is_thread_safe(ranks: Ranks) -> None:
    ranks.run(2, jobs_order.hook_from_many_threads)


@pytest.mark.parametrize("how", ["release", "with", "finaliser"])
def test_dispatch_abandoned_on_one_rank(team: Team, how: str) -> None:
    texts = team.run(3, jobs_order.abandoned_on_one, how)
    assert all("rank 0" in text for text in texts[1:]), texts


def test_dispatches_that_nobody_combines(ranks: Ranks) -> None:
    ranks.run(2, jobs_order.abandoned_by_later_dispatches)


def test_ranks_run_ahead(ranks: Ranks) -> None:
    ranks.run(ranks.few(3, 2), jobs_order.remote_ahead)


@pytest.mark.long
@pytest.mark.slow
def test_soak(team: Team) -> None:
    pairs = int(os.environ.get("MOEWIRE_SOAK_PAIRS") or 10_000)
    for result in team.run(3, jobs_order.soak, pairs, timeout=540 * max(1, pairs // 10_000)):
        assert max(result["descriptors"]) == min(result["descriptors"]), result
        assert max(result["threads"]) <= min(result["threads"]) + 1, result
        assert result["resident"][-1] - result["resident"][1] < 16 << 20, result
