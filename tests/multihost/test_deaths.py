"""The others know that a process has ended, whatever is left of its sockets."""

from __future__ import annotations

import collections
import os
import random

import pytest

from harness.team import Team
from hosts import deaths
from hosts.layout import hosts, placed

# No wait for silence ends within a test: only knowledge of the death ends it.
TIMEOUTS = {"MOEWIRE_UNRESPONSIVE_AFTER_US": "60000000"}


LAYOUTS = ("layout", "killed", "child", "port_taken")


@pytest.mark.parametrize(
    LAYOUTS,
    [
        ("0|1", 0, "fork", False),  # the survivor has no quorum
        ("0|1", 0, "", True),
    ],
)
def test_a_killed_rank_is_dead(
    team: Team, layout: str, killed: int, child: str, port_taken: bool
) -> None:
    """A child holds the sockets, and another process takes the freed port."""
    kill_one(team, layout, killed, child, port_taken)


@pytest.mark.all
@pytest.mark.parametrize(
    LAYOUTS,
    [
        ("0|1", 1, "fork", False),
        ("0|1", 1, "", True),
        ("0|1", 0, "fork", True),
        ("01|23", 0, "fork", False),
        ("01|2", 0, "clone", False),  # no fork handler runs: a rank of the same host reports the
        # death
        ("01|23", 0, "clone", False),
        ("01|23", 3, "clone", False),
    ],
)
def test_a_killed_rank_is_dead_in_other_layouts(
    team: Team, layout: str, killed: int, child: str, port_taken: bool
) -> None:
    kill_one(team, layout, killed, child, port_taken)


@pytest.mark.long
def test_random_deaths(team: Team) -> None:
    """Runs MOEWIRE_DEATHS random deaths, 100 unless it is set."""
    chance = random.Random(team.seed)
    done: collections.Counter[str] = collections.Counter()
    for _ in range(int(os.environ.get("MOEWIRE_DEATHS", "100"))):
        layout = chance.choice(["0|1", "0|12", "01|2", "01|23", "0|1|2"])
        killed = chance.randrange(len(layout.replace("|", "")))
        alone = str(killed) in layout.split("|")
        child = chance.choice(["", "fork"] if alone else ["", "fork", "clone"])
        # A cloned child holds the port, so no other process can take it then.
        port_taken = child != "clone" and chance.random() < 0.5
        done[f"child: {child or 'none'}"] += 1
        done["port taken"] += port_taken
        kill_one(team, layout, killed, child, port_taken)
    print(dict(done))


def kill_one(team: Team, layout: str, killed: int, child: str, port_taken: bool) -> None:
    places = [*hosts(layout, **TIMEOUTS), {}]
    arguments = (placed, places, deaths.struck, killed, child, port_taken)
    seconds = team.run(len(places), *arguments, dies=frozenset({killed}), timeout=120)
    late = [s for r, s in enumerate(seconds) if r != killed]
    print(f"from the kill to the return: {max(late):.3f} s")
    assert max(late) < 5, seconds
