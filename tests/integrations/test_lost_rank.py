"""transformers' generate() goes on without a killed rank, and later with a fresh process."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration_ranks import run

pytestmark = [pytest.mark.multirank, pytest.mark.slow]

LAYERS, TOKENS = 2, 12  # of the model; that are written


@pytest.mark.parametrize("ranks", [2, 4], ids="R{}".format)
def test_a_text_survives_a_killed_rank(ranks: int, tmp_path: Path) -> None:
    """Every logit of the survivors: with all experts, without the lost ones, with all again."""
    victim = ranks - 1
    answers = run(ranks + 1, "lost_jobs.survive", str(tmp_path), dies=frozenset({victim}))
    assert answers[victim] is None
    *survivors, fresh = [answer for answer in answers if answer is not None]
    assert fresh["operations"] == [4 * LAYERS] * 2
    for answer in survivors:
        assert answer["equal"]
        assert not answer["equal_without_loss"]
        assert answer["members"] == list(range(ranks))
        assert answer["epoch"] == 2
        assert answer["operations"] == [TOKENS * LAYERS] * 2
