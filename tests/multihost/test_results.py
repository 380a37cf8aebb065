"""Results over several hosts equal the naive reference, and the results of shared memory."""

from __future__ import annotations

import pytest

from harness import jobs_flat, jobs_oracle, jobs_order
from harness.team import Team
from hosts import jobs
from hosts.layout import hosts, placed, remote_pairs

LAYOUTS = ["0|1", "01|23", "0|1|2"]


def size_of(layout: str) -> int:
    return len(layout.replace("|", ""))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_random_cases_packed(team: Team, layout: str) -> None:
    results = team.run(size_of(layout), placed, hosts(layout), jobs_oracle.random_cases, 24)
    assert min(results) >= 24


@pytest.mark.parametrize("layout", LAYOUTS)
def test_random_cases_flat(team: Team, layout: str) -> None:
    results = team.run(size_of(layout), placed, hosts(layout), jobs_flat.random_cases, 24)
    assert min(results) >= 12


def test_encrypted(team: Team) -> None:
    places = hosts("0|1", MOEWIRE_PROTECTION="encrypt")
    team.run(2, placed, places, jobs_oracle.random_cases, 6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_tokens(team: Team, layout: str) -> None:
    team.run(size_of(layout), placed, hosts(layout), jobs.no_tokens)


@pytest.mark.parametrize(("letters", "num_slots"), [("ddcc", 2), ("dddccc", 3), ("ddrc", 2)])
def test_several_in_flight(team: Team, letters: str, num_slots: int) -> None:
    team.run(3, placed, hosts("01|2"), jobs_order.pattern, letters, num_slots)


def test_hooks_in_flight(team: Team) -> None:
    team.run(2, placed, hosts("0|1"), jobs_order.hooks_in_flight)


@pytest.mark.parametrize("layout", ["01|2", "0|1|2"])
def test_paths(team: Team, layout: str) -> None:
    found = team.run(3, placed, hosts(layout), jobs.carriers)
    assert dict(enumerate(found)) == remote_pairs(layout)


def test_transport_tcp_is_tcp_on_one_host(team: Team) -> None:
    found = team.run(3, placed, hosts("012"), jobs.carriers, "tcp")
    assert dict(enumerate(found)) == remote_pairs("0|1|2")


def test_deterministic_bits_do_not_depend_on_where_ranks_are(team: Team) -> None:
    def digests(layout: str, **variables: str) -> list[str]:
        return team.run(4, placed, hosts(layout, **variables), jobs.digest, 10, timeout=120)

    want = digests("0123")
    assert digests("01|23") == want
    assert digests("0|1|2|3") == want
    assert digests("0123", MOEWIRE_TRANSPORT="tcp") == want
