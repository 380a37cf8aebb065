"""Keys are replaced while ranks run. A file that others can read is refused."""

from __future__ import annotations

from harness.team import Team
from hosts import jobs
from hosts.layout import KEY, OTHER_KEY, hosts, placed


def test_keys_are_exchanged_while_ranks_run(team: Team) -> None:
    places = hosts("0|1", MOEWIRE_KEY="")
    team.run(2, placed, places, jobs.exchange_keys, f"1 {KEY}", f"2 {OTHER_KEY}", timeout=120)
