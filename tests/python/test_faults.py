"""Lost ranks, and changes of the membership."""

from __future__ import annotations

from harness import jobs_faults
from harness.carry_over import Ranks


def test_a_killed_rank_is_replaced(ranks: Ranks) -> None:
    ranks.run(4, jobs_faults.replaced, dies=frozenset({2}))


def test_a_frozen_rank_comes_back(ranks: Ranks) -> None:
    ranks.run(3, jobs_faults.frozen)


def test_ranks_leave_and_come(ranks: Ranks) -> None:
    ranks.need_device("processes whose kernels take the processor from one another")
    # On one device processes take turns of milliseconds.
    ranks.run(ranks.few(8, 4, on_device=4), jobs_faults.scaled, timeout=120)


def test_a_rank_dies_during_an_update(ranks: Ranks) -> None:
    seconds = ranks.run(3, jobs_faults.dies_in_update, dies=frozenset({2}))
    assert max(seconds[:2]) < 30, seconds


def test_one_rank_constructs_again(ranks: Ranks) -> None:
    ranks.run(2, jobs_faults.made_again)


def test_ranks_that_meet_by_bytes(ranks: Ranks) -> None:
    ranks.run(3, jobs_faults.by_bytes)


def test_deterministic_order(ranks: Ranks) -> None:
    size = ranks.few(3, 2)
    once = ranks.run(size, jobs_faults.deterministic, seed=5)
    assert once == ranks.run(size, jobs_faults.deterministic, seed=5)


def test_a_late_peer_is_waited_for_behind(ranks: Ranks) -> None:
    (hook, _), _ = ranks.run(2, jobs_faults.overlapped)
    assert hook < 0.1, hook  # of 0.2 s
