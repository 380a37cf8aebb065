"""Routings between hosts: against plain loops, bits of all carriers, ranks that are lost."""

from __future__ import annotations

import pytest

from harness import jobs_routing
from harness.team import Team
from hosts.layout import hosts, placed

LAYOUTS = ["0|1", "01|23", "0|1|2"]
THREE = [pytest.param("01|2", marks=pytest.mark.all), "0|1|2"]


def size_of(layout: str) -> int:
    return len(layout.replace("|", ""))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_random_cases(team: Team, layout: str) -> None:
    size, job = size_of(layout), jobs_routing.random_cases
    team.run(size, placed, hosts(layout), job, 2, timeout=120)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_edges(team: Team, layout: str) -> None:
    team.run(size_of(layout), placed, hosts(layout), jobs_routing.edges)


def test_bits_do_not_depend_on_where_ranks_are(team: Team) -> None:
    def digests(layout: str, **variables: str) -> list[str]:
        places = hosts(layout, **variables)
        return team.run(4, placed, places, jobs_routing.digest, 3, timeout=120)

    want = digests("0123")
    assert len(set(want)) == len(want)  # they have results
    for layout in ("0123", "01|23", "0|1|2|3"):
        assert digests(layout) == want, layout
    assert digests("0123", MOEWIRE_TRANSPORT="tcp") == want


@pytest.mark.parametrize("how", ["killed", "hung"])
@pytest.mark.parametrize("use", ["scatter", "gather"])
@pytest.mark.parametrize("layout", THREE)
def test_a_rank_is_lost_meanwhile(team: Team, layout: str, use: str, how: str) -> None:
    dies = frozenset({1} if how == "killed" else ())
    job = jobs_routing.lost
    seconds = team.run(3, placed, hosts(layout), job, use, how, dies=dies, timeout=60)
    assert max(seconds[0], seconds[2]) < jobs_routing.HANG_US / 1e6 + 3, seconds


def test_an_old_epoch(team: Team) -> None:
    team.run(2, placed, hosts("0|1"), jobs_routing.old_epoch)
