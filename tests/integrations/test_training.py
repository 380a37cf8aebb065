"""Gradients of transformers' models on 2 and 4 processes, against one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from integration_ranks import run

SIZES = (2, pytest.param(4, marks=pytest.mark.long))
NAMES = ("mixtral", "deepseek_v3", "qwen3_moe", "olmoe", "gpt_oss")
LAYERS, ROUND = 2, 16  # MoE layers of each model; tokens of a round, as in integration_jobs
BF16 = 2.0**-8  # its unit roundoff

pytestmark = [pytest.mark.multirank, pytest.mark.slow]


@pytest.fixture(scope="module", params=SIZES, ids=lambda size: f"R{size}")
def answers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, wrong_library: str
) -> list[Any]:
    """One launch per number of ranks serves all tests."""
    folder: Path = tmp_path_factory.mktemp("models")
    jobs = "training_jobs.everything"
    return run(request.param, jobs, str(folder), timeout=400, MOEWIRE_LIBRARY=wrong_library)


def _rounds(ranks: int) -> int:
    return -(-2 * (6 + 11 * (ranks - 1)) // ROUND)  # of the rank with most tokens


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_one_process_s(answers: list[Any], name: str) -> None:
    """Both sides add R batches' gradients in bf16, the one after, the other by rounds: each
    addition rounds once, and each side's terms once."""
    ranks = len(answers)
    for answer in answers:
        distance, where = answer[name]["distance"]
        peer, peer_where = answer[name]["peer_distance"]  # to read, not to judge
        print(f"{name}: {distance:.2g} ({where}), all_to_all {peer:.2g} ({peer_where})")
        assert answer[name]["names"]
        assert distance < 2 * ranks * BF16, where


@pytest.mark.parametrize("name", NAMES)
def test_a_second_backward_gives_the_same_bits(answers: list[Any], name: str) -> None:
    assert all(answer[name]["again"] for answer in answers)


@pytest.mark.parametrize("name", NAMES)
def test_checkpointing_gives_the_same_bits(answers: list[Any], name: str) -> None:
    assert all(answer[name]["checkpointed"] for answer in answers)
    assert all(answer["reentrant"] for answer in answers)


@pytest.mark.parametrize("name", NAMES)
def test_forward_and_backward_went_through_the_core(answers: list[Any], name: str) -> None:
    """A dispatch and a combine per layer and round, forward and backward; the forward twice with
    checkpointing."""
    forward = LAYERS * _rounds(len(answers))
    for answer in answers:
        assert answer[name]["operations"] == [2 * forward] * 2
        assert answer[name]["checkpointed_operations"] == [3 * forward] * 2


def test_a_corrupted_combine_is_noticed(answers: list[Any]) -> None:
    for answer in answers:
        assert answer["corrupted"] == {"as_it_is": True, "corrupted": False}


def test_ranks_that_share_a_batch(answers: list[Any]) -> None:
    tokens = 2 * (7 + 4 * (len(answers) // 2 - 1)) / 2  # of the pair with most, by rank
    for answer in answers:
        found = answer["tensor_parallel"]
        assert found["layer"]  # equal to one process, to the bit
        assert found["as_peer"]  # all of the model: equal to the built-in exchange, to the bit
        assert found["distance"] == found["peer_distance"] < 0.02
        distance, where = found["gradients"]
        peer, peer_where = found["peer_gradients"]
        print(f"pairs: {distance:.2g} ({where}), all_to_all {peer:.2g} ({peer_where})")
        # Twice what it is above: sums of dense layers have two parts, each of which is rounded.
        assert distance < 2 * 2 * len(answers) * BF16, where
        assert found["operations"] == [2 * LAYERS * -(-tokens // ROUND)] * 2


@pytest.mark.parametrize("what", ["trained", "kept", "logits"])
def test_a_model_that_was_trained_is_saved_and_loaded(answers: list[Any], what: str) -> None:
    assert all(answer["saved"][what] for answer in answers)
