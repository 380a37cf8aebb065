"""Flat operations against a naive reference, on real processes."""

from __future__ import annotations

import pytest

from harness import jobs_flat
from harness.team import Team

CASES = {1: 40, 2: 80, 3: 60, 4: 50, 8: 30}


@pytest.mark.parametrize("size", CASES, ids="R={}".format)
def test_random_cases_have_the_references_bits(team: Team, size: int) -> None:
    results = team.run(size, jobs_flat.random_cases, CASES[size], timeout=150)
    assert min(results) >= CASES[size] // 2


def test_copied_outputs_have_the_references_bits(team: Team) -> None:
    team.run(2, jobs_flat.random_cases, 40, True, timeout=90)
