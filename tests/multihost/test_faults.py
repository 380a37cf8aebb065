"""Lost ranks on other hosts, and changes of the membership."""

from __future__ import annotations

import pytest
from _pytest.mark import ParameterSet

from harness import jobs_faults, jobs_flat, jobs_life
from harness.team import Team
from hosts import jobs
from hosts.layout import hosts, placed


def in_all(layouts: list[str]) -> list[ParameterSet]:
    return [pytest.param(layout, marks=pytest.mark.all) for layout in layouts]


# Processes 0 to 2 are the ranks; process 3 takes the place of rank 2, which was killed.
@pytest.mark.parametrize("layout", ["01|23", *in_all(["01|2|3", "0|12|3"])])
def test_a_killed_rank_is_replaced(team: Team, layout: str) -> None:
    team.run(4, placed, hosts(layout), jobs_faults.replaced, dies=frozenset({2}))


def test_a_rank_that_waits_for_a_killed_one_returns(team: Team) -> None:
    """The call has no deadline. The end of a process is reported, so no timeout has to pass
    first."""
    dies = frozenset({2})
    seconds = team.run(3, placed, hosts("01|2"), jobs_life.peer_is_killed, dies=dies)
    assert max(seconds[:2]) < 30, seconds


@pytest.mark.parametrize("layout", ["0|1|2", "02|1", "0|12"])
def test_a_frozen_rank_is_fenced_and_comes_back(team: Team, layout: str) -> None:
    team.run(3, placed, hosts(layout), jobs_faults.frozen)


def test_the_half_with_rank_0_is_lost(team: Team) -> None:
    _, text = team.run(2, placed, hosts("0|1"), jobs.half_is_lost, dies=frozenset({0}))
    assert "rank 0 did not answer, and rank 1 of ranks 0, 1 may not decide alone" in text, text
    assert "went on without" not in text, text


@pytest.mark.parametrize("where", ["dispatch", "combine"])
def test_a_rank_is_killed_in_a_flat_exchange(team: Team, where: str) -> None:
    team.run(3, placed, hosts("0|12"), jobs_flat.killed_in, where, dies=frozenset({1}))


@pytest.mark.parametrize("layout", ["02|1", *in_all(["0|12", "0|1|2"])])
def test_a_rank_is_killed_in_pre_reduced_exchanges(team: Team, layout: str) -> None:
    team.run(3, placed, hosts(layout), jobs.killed_pre_reduced, dies=frozenset({1}))


def test_a_rank_dies_during_an_update(team: Team) -> None:
    dies = frozenset({2})
    seconds = team.run(3, placed, hosts("01|2"), jobs_faults.dies_in_update, dies=dies)
    assert max(seconds[:2]) < 30, seconds


def test_ranks_leave_and_come(team: Team) -> None:
    team.run(8, placed, hosts("0123|4567"), jobs_faults.scaled, timeout=120)


def test_ranks_that_meet_by_bytes(team: Team) -> None:
    team.run(3, placed, hosts("0|1|2"), jobs_faults.by_bytes)


def test_a_close_is_announced(team: Team) -> None:
    team.run(2, placed, hosts("0|1"), jobs_life.peer_closes)
