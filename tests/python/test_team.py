"""The processes that tests run on, and what they say when one of them is late."""

from __future__ import annotations

import pytest

from harness import jobs_wait
from harness.team import RankFailure, Team


def test_what_a_rank_finds_when_others_are_killed_is_no_failure_of_its_own() -> None:
    team = Team(0)
    try:
        team.run(2, jobs_wait.ready, timeout=120)  # what they import is there
        with pytest.raises(RankFailure) as failure:
            team.run(2, jobs_wait.outlives_rank_0, timeout=2)
    finally:
        team.close()
    text = str(failure.value)
    assert "rank 0: no answer in time" in text and "rank 1: no answer in time" in text
    assert "went on without" not in text
