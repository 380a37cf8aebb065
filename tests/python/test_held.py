"""A dispatch does not overwrite what is held: it raises, before anything is sent."""

from __future__ import annotations

import pytest

from harness import jobs_held
from harness.carry_over import Ranks
from harness.team import Team


def test_third_dispatch_is_refused(ranks: Ranks) -> None:
    ranks.run(2, jobs_held.third_dispatch)


def test_third_flat_dispatch_is_refused(team: Team) -> None:
    team.run(2, jobs_held.third_flat_dispatch)


@pytest.mark.parametrize("way", jobs_held.WAYS)
def test_slot_is_given_up(ranks: Ranks, way: str) -> None:
    ranks.run(2, jobs_held.freed, way)


def test_what_only_a_cycle_keeps_is_not_held(ranks: Ranks) -> None:
    ranks.run(2, jobs_held.kept_by_cycles)


def test_one_held_beside_others(team: Team) -> None:
    for text in team.run(2, jobs_held.held_beside_others):
        assert "1 operations are in flight and held, num_slots=2" in text, text


@pytest.mark.parametrize("name", jobs_held.UPSTREAM)
def test_upstreams_names_overwrite_and_warn_once(team: Team, name: str) -> None:
    for texts in team.run(2, jobs_held.upstream_overwrites, name):
        assert len(texts) == 1 and jobs_held.TEXT in texts[0], texts
