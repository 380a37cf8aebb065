"""transformers' models with their experts on 2 and 4 processes, against one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from integration_ranks import run

SIZES = (2, 4)
NAMES = ("mixtral", "deepseek_v3", "qwen3_moe", "olmoe", "gpt_oss")
HOOKED = NAMES[2:]  # their routers give bf16 scores
ROUND, EXPERTS, TOPK = 16, 16, 4  # as in integration_jobs and integration_models

pytestmark = [pytest.mark.multirank, pytest.mark.slow]


@pytest.fixture(scope="module", params=SIZES, ids=lambda size: f"R{size}")
def answers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, wrong_library: str
) -> list[Any]:
    """One launch per number of ranks serves all tests."""
    folder: Path = tmp_path_factory.mktemp("models")
    jobs = "integration_jobs.everything"
    return run(request.param, jobs, str(folder), MOEWIRE_LIBRARY=wrong_library)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("length", ["1", "5", "40", "uneven"])
def test_logits_equal_one_process_to_the_bit(answers: list[Any], name: str, length: str) -> None:
    assert [answer[name][length] for answer in answers] == [True] * len(answers)


@pytest.mark.parametrize("name", HOOKED)
def test_without_the_hook_only_rounding_differs(answers: list[Any], name: str) -> None:
    for answer in answers:
        assert answer[name]["hooks"] == [2, 2]
        assert 0 < answer[name]["without_hook"] < 0.1


@pytest.mark.parametrize("name", NAMES)
def test_layers_share_one_buffer_and_agree_on_rounds(answers: list[Any], name: str) -> None:
    size = len(answers)
    longest = 2 * (3 + 9 * (size - 1))
    for rank, answer in enumerate(answers):
        assert answer[name]["buffers"] == 1
        stats = answer[name]["stats"]
        assert len(stats) == 2
        for layer in stats:
            assert layer["calls"] == 1
        operations = 2 * -(-longest // ROUND)  # of two layers; the core's own count
        assert answer[name]["operations"] == [operations, operations]
        for layer in stats:
            assert layer["rounds"] == -(-longest // ROUND)
            assert layer["tokens"] == 2 * (3 + 9 * rank)
            assert sum(layer["rows_per_expert"]) == layer["rows"]
            assert len(layer["rows_per_expert"]) == EXPERTS // size
            assert min(layer[f"seconds_{part}"] for part in ("dispatch", "combine")) > 0
    for layer in range(2):
        tokens = sum(answer[name]["stats"][layer]["tokens"] for answer in answers)
        assert sum(answer[name]["stats"][layer]["rows"] for answer in answers) == tokens * TOPK


def test_generate_with_other_lengths_on_every_rank(answers: list[Any]) -> None:
    assert all(answer["behaviour"]["generate"] for answer in answers)


def test_a_rank_without_tokens_joins(answers: list[Any]) -> None:
    joins = [answer["behaviour"]["join"] for answer in answers]
    assert [join["idle"] for join in joins] == [False] * (len(joins) - 1) + [True]
    assert all(join["equal"] for join in joins)
    assert [join["tokens"] for join in joins] == [40] * (len(joins) - 1) + [0]
    assert {join["rounds"] for join in joins} == {-(-40 // ROUND)}
    assert all("gather_dense_weights" in answer["behaviour"]["join_refused"] for answer in answers)


def test_a_corrupted_combine_is_noticed(answers: list[Any]) -> None:
    for answer in answers:
        assert answer["behaviour"]["corrupt"] == {"as_it_is": True, "corrupted": False}


def test_grouped_mm_is_as_close_as_its_matrix_products(answers: list[Any]) -> None:
    assert max(answer["behaviour"]["grouped"] for answer in answers) < 0.02


def test_beside_the_builtin_all_to_all(answers: list[Any]) -> None:
    peers = [answer["behaviour"]["peer"] for answer in answers]
    assert max(peer["distance"] for peer in peers) < 0.1
    ours = max(peer["moewire_ms"] for peer in peers)
    theirs = max(peer["all_to_all_ms"] for peer in peers)
    print(f"R={len(peers)}: forward {ours:.1f} ms, with all_to_all {theirs:.1f} ms")


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("dtype", ("float32", "bfloat16")),
        ("experts", ("Linear", "no experts")),
        ("num_ranks", ("3", "divisor")),
        ("again", ("spread already",)),
        ("max_tokens", ("max_tokens", "0 given", "1 to ")),
    ],
)
def test_what_cannot_work_says_so(answers: list[Any], case: str, words: tuple[str, ...]) -> None:
    for answer in answers:
        assert all(word in answer["behaviour"][case] for word in words)


def test_a_refused_model_is_left_as_it_was(answers: list[Any]) -> None:
    assert all(answer["behaviour"]["untouched"] for answer in answers)
