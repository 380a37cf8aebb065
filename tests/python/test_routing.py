"""Routings on real processes, against plain loops."""

from __future__ import annotations

import pytest

from harness import jobs_routing
from harness.team import Team

CASES = {1: 3, 2: 4, 3: 4, 5: 4, 6: 4}
LATER = (5, 6)


@pytest.mark.parametrize(
    "size",
    [pytest.param(size, marks=[pytest.mark.all] if size in LATER else []) for size in CASES],
    ids="R={}".format,
)
def test_random_cases(team: Team, size: int) -> None:
    assert sum(team.run(size, jobs_routing.random_cases, CASES[size], timeout=120)) > 0
