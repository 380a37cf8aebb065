"""Expert ids and routing weights of the types that routers make."""

from __future__ import annotations

from harness import jobs_selections
from harness.team import Team


def test_other_types_give_the_same_bits(team: Team) -> None:
    team.run(2, jobs_selections.types)
