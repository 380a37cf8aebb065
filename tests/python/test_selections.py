"""Expert ids and routing weights of the types that routers make."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import moewire
from harness import jobs_selections
from harness.team import Team
from moewire import autograd


def test_other_types_give_the_same_bits(team: Team) -> None:
    team.run(2, jobs_selections.types)


@pytest.fixture(scope="module")
def buffer() -> Iterator[moewire.Buffer]:
    with moewire.Buffer.from_exchange(lambda own: [own], 0, 1) as one:
        yield one


X = torch.ones((3, 128), dtype=torch.bfloat16)
IDS, WEIGHTS = torch.zeros((3, 2), dtype=torch.int64), torch.ones((3, 2))
ALL = "torch.int64, torch.int32", "torch.float32, torch.bfloat16, torch.float16"


def _combine(buffer: moewire.Buffer, ids: torch.Tensor, weights: torch.Tensor) -> None:
    recv_x, _, handle, _, _ = buffer.dispatch(X, IDS, None, 4, 2, -1, False)
    with handle:
        buffer.combine(recv_x, ids, weights, None, -1, handle)


# What each call allows, ids and weights.
CALLS: dict[str, tuple[Any, tuple[str, str]]] = {
    "dispatch": (
        lambda b, ids, weights: b.dispatch(
            X, ids, None, 4, 2, -1, False, pre_reduce=True, topk_weights=weights
        ),
        ALL,
    ),
    "dispatch_flat": (lambda b, ids, weights: b.dispatch_flat(X, ids, weights, 4, 2), ALL),
    "combine": (_combine, ALL),
    "autograd": (
        lambda b, ids, weights: autograd.dispatch(b, X, ids, weights, None, 4, 2, -1),
        ALL,
    ),
    "autograd_flat": (
        lambda b, ids, weights: autograd.dispatch_flat(b, X, ids, weights, 4, 2),
        ALL,
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_error_names_all_types_that_are_allowed(buffer: moewire.Buffer, name: str) -> None:
    call, (ids, weights) = CALLS[name]
    for argument, allowed, given in (
        ("topk_idx", ids, (IDS.to(torch.int16), WEIGHTS)),
        ("topk_weights", weights, (IDS, WEIGHTS.double())),
    ):
        with pytest.raises(moewire.InvalidArgument) as raised:
            call(buffer, *given)
        dtype = given[argument == "topk_weights"].dtype
        assert str(raised.value) == f"{argument}: dtype {dtype} given; allowed: dtype {allowed}"
