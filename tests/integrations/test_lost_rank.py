"""transformers' generate() goes on without a killed rank, and later with a fresh process."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration_ranks import run

pytestmark = [pytest.mark.multirank, pytest.mark.slow]

TOKENS, TOGETHER = 12, 4  # that are written; with the fresh process
# The models that the layers are taken from.
ONE_SHAPE, TWO_SHAPES = ("mixtral", "mixtral"), ("mixtral", "mixtral_half")


@pytest.mark.parametrize(
    ("ranks", "parts"),
    [(2, ONE_SHAPE), (4, ONE_SHAPE), (2, TWO_SHAPES)],
    ids=["R2", "R4", "R2-two-shapes"],
)
def test_a_text_survives_a_killed_rank(ranks: int, parts: tuple[str, ...], tmp_path: Path) -> None:
    """Every logit of the survivors: with all experts, without the lost ones, with all again.

    Layers of another shape have a Buffer of their own, which the fresh process joins, too.
    """
    killed = ranks - 1
    answers = run(ranks + 1, "lost_jobs.survive", str(tmp_path), parts, dies=frozenset({killed}))
    assert answers[killed] is None
    *survivors, fresh = [answer for answer in answers if answer is not None]
    layers = len(parts) // len(set(parts))  # that share a Buffer
    assert [one["operations"] for one in fresh["buffers"]] == _both(TOGETHER * layers, parts)
    for answer in survivors:
        assert answer["equal"]
        assert not answer["equal_without_loss"]
        assert [one["operations"] for one in answer["buffers"]] == _both(TOKENS * layers, parts)
    for answer in (*survivors, fresh):
        for one in answer["buffers"]:
            assert one["members"] == list(range(ranks))
            assert one["epoch"] == 2


def _both(number: int, parts: tuple[str, ...]) -> list[list[int]]:
    """As many dispatches as combines, by Buffer."""
    return [[number, number] for _ in set(parts)]
