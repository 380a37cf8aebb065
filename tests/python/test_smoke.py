"""What `make check` runs of Python: two processes exchange, and one of them is killed."""

from __future__ import annotations

import pytest

from harness import jobs_life, jobs_oracle
from harness.team import Team

pytestmark = [pytest.mark.check, pytest.mark.multirank]


def test_two_processes_have_the_oracles_bits(team: Team) -> None:
    assert min(team.run(2, jobs_oracle.random_cases, 4)) >= 4


def test_a_killed_process_is_noticed(team: Team) -> None:
    seconds = team.run(2, jobs_life.peer_is_killed, dies=frozenset({1}))
    assert seconds[0] < 5.0
