"""Gradients through scatter and gather, against plain torch in one process."""

from __future__ import annotations

import pytest

from harness import jobs_autograd_routed
from harness.team import Team

SIZES = [1, 2, pytest.param(3, marks=pytest.mark.all), 4]


@pytest.mark.parametrize("size", SIZES, ids="R={}".format)
def test_every_bit_where_nothing_is_rounded(team: Team, size: int) -> None:
    rows = team.run(size, jobs_autograd_routed.every_form, 5, timeout=120)
    assert sum(rows) > 15


def test_many_routings_are_held(team: Team) -> None:
    team.run(2, jobs_autograd_routed.held, 64, timeout=120)


def test_what_cannot_work_says_so(team: Team) -> None:
    (found,) = team.run(1, jobs_autograd_routed.refused)
    for text, words in zip(
        found,
        (
            "buffer: NoneType given; allowed: a moewire.Buffer",
            "routing: a NoneType given; allowed: what make_routing returned",
            "x: dtype torch.float16 given; allowed: dtype torch.bfloat16, torch.float32",
            "x: dtype torch.float32 given; allowed: dtype torch.bfloat16",
            "topk_weights: dtype torch.float64 given; allowed: dtype torch.float32, torch.bf",
            "y: shape [1, 8] given; allowed: shape [2, any]",
            "dtype: torch.float32 given; allowed: torch.bfloat16 for such y",
            "rows: int given; allowed: what scatter returned, or None",
            "bias: a Tensor given; allowed: a list or tuple of tensors",
            "bias: a NoneType given; allowed: a list or tuple of tensors",
            "y: hidden size 4 given; allowed: a multiple of 8",
            "epoch 1",
        ),
        strict=True,
    ):
        assert words in text, text
