"""Routings on real processes, against plain loops."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from harness import jobs_routing
from harness.team import Team
from moewire import Buffer, InvalidArgument, Routing

CASES = {1: 1, 2: 2, 3: 2, 4: 2, 5: 4, 6: 4}
LATER = (4, 5, 6)


SIZES = pytest.mark.parametrize(
    "size",
    [pytest.param(size, marks=[pytest.mark.all] if size in LATER else []) for size in CASES],
    ids="R={}".format,
)


@SIZES
def test_random_cases(team: Team, size: int) -> None:
    team.run(size, jobs_routing.random_cases, CASES[size], timeout=120)


@SIZES
def test_edges(team: Team, size: int) -> None:
    team.run(size, jobs_routing.edges)


@pytest.mark.parametrize("count", [400, pytest.param(10_000, marks=pytest.mark.all)])
def test_many_steps(team: Team, count: int) -> None:
    team.run(2, jobs_routing.many_steps, count, timeout=240)


def test_only_ranks_are_known(team: Team) -> None:
    team.run(3, jobs_routing.without_ids)


def test_many_are_held(team: Team) -> None:
    team.run(2, jobs_routing.held, 64)


def test_a_rank_is_killed(team: Team) -> None:
    seconds = team.run(3, jobs_routing.killed, dies=frozenset({1}))
    assert max(seconds[0], seconds[2]) < 5, seconds


@pytest.mark.parametrize("how", ["killed", "hung"])
@pytest.mark.parametrize(
    "use", ["scatter", "gather", pytest.param("routing", marks=pytest.mark.all)]
)
def test_a_rank_is_lost_meanwhile(team: Team, use: str, how: str) -> None:
    dies = frozenset({1} if how == "killed" else ())
    seconds = team.run(3, jobs_routing.lost, use, how, dies=dies, timeout=60)
    assert max(seconds[0], seconds[2]) < jobs_routing.HANG_US / 1e6 + 3, seconds


def test_an_old_epoch(team: Team) -> None:
    team.run(2, jobs_routing.old_epoch)


def test_an_interrupted_wait(team: Team) -> None:
    team.run(2, jobs_routing.interrupted)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("K", ("num_topk is", "2", "3")),
        ("E", ("num_experts", "4", "8")),
        ("row", ("bytes per row", "16", "32")),
        ("weights", ("bytes per token of topk_weights", "0 on", "8 on")),
        ("call", ("the call", "scatter", "gather")),
    ],
)
def test_ranks_that_disagree(team: Team, what: str, words: tuple[str, ...]) -> None:
    for text in team.run(2, jobs_routing.disagreement, what):
        assert all(word in text for word in words), text


def test_life(team: Team) -> None:
    team.run(2, jobs_routing.life)


# --- one rank: what is refused

T, K, E, H = 4, 2, 4, 8
BF16 = torch.bfloat16


@pytest.fixture(scope="module")
def buffer() -> Iterator[Buffer]:
    with Buffer.from_exchange(lambda own: [own], 0, 1) as made:
        yield made


def _ids(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64)


@pytest.fixture(scope="module")
def routing(buffer: Buffer) -> Routing:
    return buffer.make_routing(_ids(T, K), E)


@pytest.fixture(scope="module")
def without_ids(buffer: Buffer) -> Routing:
    return buffer.make_routing(None, E, is_token_in_rank=torch.ones(T, 1, dtype=torch.bool))


_MASK = torch.ones(T, 1, dtype=torch.bool)
_X = torch.zeros(T, H, dtype=BF16)
# Arguments that are wrong, and what is said of them.
MAKE: dict[str, tuple[dict[str, Any], str]] = {
    "no ids": ({"topk_idx": None}, "is_token_in_rank: None without topk_idx given; allowed: a"),
    "list": ({"topk_idx": [[0]]}, "topk_idx: list given; allowed: a torch.Tensor"),
    "dtype": ({"topk_idx": _ids(T, K).float()}, "topk_idx: dtype torch.float32 given; allowed: "),
    "dim": ({"topk_idx": _ids(T)}, "topk_idx: shape [4] given; allowed: shape [any, any]"),
    "K": ({"topk_idx": _ids(T, 65)}, "topk_idx: 65 selections per token given; allowed: 1 to 64"),
    "stride": ({"topk_idx": _ids(K, T).t()}, "topk_idx: strides (1, 4) for shape [4, 2] given"),
    "id": ({"topk_idx": _ids(T, K) + E}, "topk_idx[0, 0] is 4, allowed -1 to 3"),
    "low": ({"topk_idx": _ids(T, K) - 2}, "topk_idx[0, 0] is -2, allowed -1 to 3"),
    "E": ({"num_experts": 0}, "num_experts: 0 given; allowed: 1 to "),
    "mask dtype": (
        {"is_token_in_rank": _MASK.int()},
        "is_token_in_rank: dtype torch.int32 given; allowed: dtype torch.bool",
    ),
    "mask": (
        {"is_token_in_rank": _MASK[:3]},
        "is_token_in_rank: shape [3, 1] given; allowed: shape [4, 1]",
    ),
    "counts": (
        {"num_tokens_per_expert": torch.zeros(3, dtype=torch.int32)},
        "num_tokens_per_expert: shape [3] given; allowed: shape [4]",
    ),
    "negative": (
        {"num_tokens_per_expert": torch.full((E,), -1, dtype=torch.int32)},
        "num_tokens_per_expert[0] is -1, allowed 0 and more",
    ),
    "timeout": ({"timeout_us": -2}, "timeout_us: -2 given; allowed: -1 to "),
}
SCATTER: dict[str, tuple[dict[str, Any], str]] = {
    "routing": ({"routing": 3}, "routing: a int given; allowed: what make_routing returned"),
    "list": ({"x": [0]}, "x: list given; allowed: a torch.Tensor"),
    "T": ({"x": _X[:3]}, "x: shape [3, 8] given; allowed: shape [4, 8]"),
    "row": ({"x": _X[:, :4].clone()}, "x: 8 bytes per token given; allowed: a multiple of 16 up"),
    "stride": ({"x": _X.new_zeros(H, T).t()}, "x: strides (1, 4) for shape [4, 8] given; allowed"),
    "out dtype": (
        {"out": torch.zeros(T, H)},
        "out: dtype torch.float32 given; allowed: dtype torch.bfloat16",
    ),
    "out": ({"out": _X[:3].clone()}, "out: 3 rows given; allowed: at least 4"),
    "out row": ({"out": _X.new_zeros(T, 16)}, "out: shape [4, 16] given; allowed: shape [any, 8]"),
    "weights": (
        {"topk_weights": torch.zeros(T, 3)},
        "topk_weights: shape [4, 3] given; allowed: shape [4, 2]",
    ),
    "extra": (
        {"extra": torch.zeros(T, 0)},
        "bytes per token of extra: 0 given; allowed: 1 to 65535",
    ),
    "extra T": ({"extra": torch.zeros(3, 2)}, "extra: shape [3, 2] given; allowed: shape [4, 2]"),
    "expanded": ({"expanded": 2}, "expanded: 2 given; allowed: True, False"),
    "alignment": (
        {"expanded": True, "expert_alignment": 0},
        "expert_alignment: 0 given; allowed: 1 to 65536",
    ),
    "no layout": ({"expert_alignment": 8}, "expert_alignment: 8 given; allowed: 1 without expand"),
    "gaps": ({"zero_gaps": True}, "zero_gaps: True with expanded False given; allowed: with exp"),
    "timeout": ({"timeout_us": 0.5}, "timeout_us: 0.5 of type float given; allowed: an int"),
}
GATHER: dict[str, tuple[dict[str, Any], str]] = {
    "routing": ({"routing": None}, "routing: a NoneType given; allowed: what make_routing ret"),
    "dtype": ({"x": _X.half()}, "x: dtype torch.float16 given; allowed: dtype torch.bfloat16, "),
    "N": ({"x": _X[:3]}, "x: shape [3, 8] given; allowed: shape [4, any]"),
    "H": ({"x": _X[:, :4].clone()}, "x: hidden size 4 given; allowed: a multiple of 8 up to "),
    "wide": (
        {"x": _X.new_zeros(8, H).float(), "expanded": True},
        "x: dtype torch.float32 given; allowed: dtype torch.bfloat16",
    ),
    "out": ({"out": _X[:3].clone()}, "out: shape [3, 8] given; allowed: shape [4, 8]"),
    "wide out": (
        {"out": torch.zeros(T, H)},
        "out: dtype torch.float32 given; allowed: dtype torch.bfloat16",
    ),
    "weights": (
        {"topk_weights": torch.zeros(T)},
        "topk_weights: shape [4] given; allowed: shape [4, 2]",
    ),
    "owners": ({"owners_only": "yes"}, "owners_only: 'yes' given; allowed: True, False"),
    "bias": ({"bias": _X}, "bias: a Tensor given; allowed: a list or tuple of tensors"),
    "biases": ({"bias": [_X] * 3}, "bias: 3 of them given; allowed: at most 2"),
    "bias dtype": (
        {"bias": [_X, _X.float()]},
        "bias[1]: dtype torch.float32 given; allowed: dtype torch.bfloat16",
    ),
    "alignment": (
        {"expanded": True, "expert_alignment": 1 << 17},
        "expert_alignment: 131072 given; allowed: 1 to 65536",
    ),
    "timeout": ({"timeout_us": None}, "timeout_us: None of type NoneType given; allowed: an int"),
}


@pytest.mark.parametrize("name", ["make_routing", "scatter", "gather"])
def test_each_argument_is_refused(buffer: Buffer, routing: Routing, name: str) -> None:
    right: dict[str, Any] = {"routing": routing, "x": _X}
    if name == "make_routing":
        right = {"topk_idx": _ids(T, K), "num_experts": E}
    table = {"make_routing": MAKE, "scatter": SCATTER, "gather": GATHER}[name]
    for wrong, says in table.values():
        with pytest.raises(InvalidArgument, match=re.escape(says)):
            getattr(buffer, name)(**{**right, **wrong})
    getattr(buffer, name)(**right)  # nothing has happened


def test_what_needs_ids_is_refused(buffer: Buffer, without_ids: Routing) -> None:
    says = "rows cannot be expanded by expert: the routing was made without topk_idx"
    for call in (
        without_ids.num_expanded_rows,
        without_ids.expanded_rows,
        lambda: buffer.scatter(without_ids, _X, expanded=True),
        lambda: buffer.gather(without_ids, _X, expanded=True),
    ):
        with pytest.raises(InvalidArgument, match=says):
            call()
    says = "topk_weights: a tensor given; allowed: None, as the routing was made without topk_idx"
    for given in (buffer.scatter, buffer.gather):
        with pytest.raises(InvalidArgument, match=says):
            given(without_ids, _X, topk_weights=torch.zeros(T, 0))
