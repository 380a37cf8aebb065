"""Bad input: an error that names the argument, what came and what is allowed."""

from __future__ import annotations

import pytest

from harness import jobs_input
from harness.carry_over import Ranks


@pytest.fixture(scope="module")
def dispatch_failures(ranks: Ranks) -> dict[str, str]:
    return _merge(ranks.run(2, jobs_input.wrong_dispatches))


@pytest.fixture(scope="module")
def combine_failures(ranks: Ranks) -> dict[str, str]:
    return _merge(ranks.run(2, jobs_input.wrong_combines))


def _merge(results: list[dict[str, str]]) -> dict[str, str]:
    return {name: text for result in results for name, text in result.items()}


@pytest.mark.parametrize("name", jobs_input.DISPATCH)
def test_dispatch_refuses(dispatch_failures: dict[str, str], name: str) -> None:
    assert name not in dispatch_failures, dispatch_failures[name]


@pytest.mark.parametrize("name", jobs_input.COMBINE)
def test_combine_refuses(combine_failures: dict[str, str], name: str) -> None:
    assert name not in combine_failures, combine_failures[name]


def test_combine_refuses_bf16_where_float32_was_promised(ranks: Ranks) -> None:
    ranks.run(2, jobs_input.wrong_float32_combines)


def test_combine_refuses_other_selections_than_were_pre_reduced(ranks: Ranks) -> None:
    ranks.run(2, jobs_input.wrong_pre_reduced_combines)


def test_float32_outputs_need_their_room(ranks: Ranks) -> None:
    ranks.run(2, jobs_input.no_room_for_float32)


def test_stale_foreign_and_closed_handles(ranks: Ranks) -> None:
    ranks.run(2, jobs_input.wrong_handles)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("M", ("8", "7")),
        ("E", ("4", "8")),
        ("H", ("128", "64")),
        ("dtype", ("bf16", "fp8")),
        ("scales", ("scales", "float32", "round_scale")),
        ("outputs", ("output dtype", "bf16", "float32")),
    ],
)
def test_ranks_that_disagree_in_a_call(ranks: Ranks, name: str, values: tuple[str, ...]) -> None:
    for text in ranks.run(2, jobs_input.disagreement, name):
        assert all(value in text for value in values), text


@pytest.mark.parametrize(
    ("name", "values"),
    [("num_slots", ("2", "3")), ("num_bytes", ("num_ep_buffer_bytes", "16777216", "17825792"))],
)
def test_ranks_that_disagree_at_connect(ranks: Ranks, name: str, values: tuple[str, ...]) -> None:
    for text in ranks.run(2, jobs_input.connect_disagreement, name):
        assert all(value in text for value in values), text


@pytest.mark.parametrize("how", ["truncated", "empty", "0", "4", "9", "17", "33", "60", "100"])
def test_damaged_metadata_is_refused(ranks: Ranks, how: str) -> None:
    for text in ranks.run(2, jobs_input.damaged_metadata, how):
        assert "rank 1" in text or "metadata" in text, text


def test_a_peer_of_another_abi_version_is_refused(ranks: Ranks) -> None:
    for text in ranks.run(2, jobs_input.damaged_metadata, "ABI version"):
        assert "ABI version" in text and "4711" in text, text
