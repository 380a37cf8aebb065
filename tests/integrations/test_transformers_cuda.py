"""transformers' models on CUDA, over the emulated driver: their experts on two processes."""

from __future__ import annotations

from typing import Any

import pytest
from integration_ranks import run

LAYERS = 2
pytestmark = [pytest.mark.multirank, pytest.mark.slow]


@pytest.fixture(scope="module", params=["mixtral", "qwen3_moe"])
def answers(
    request: pytest.FixtureRequest, cuda_driver: str, tmp_path_factory: pytest.TempPathFactory
) -> list[Any]:
    folder = str(tmp_path_factory.mktemp("models"))
    job = "transformers_cuda_jobs.everything"
    return run(2, job, folder, cuda_driver, request.param, timeout=300.0)


def test_logits_equal_one_process_to_the_bit(answers: list[Any]) -> None:
    for answer in answers:
        assert answer["logits"]
        assert answer["on_cuda"] == [True] and answer["launched"] == LAYERS


def test_more_tokens_than_the_workspace_takes_go_in_rounds(answers: list[Any]) -> None:
    rounds = [answer["rounds"] for answer in answers]
    most = max(one["own"] for one in rounds)
    assert all(one["same"] and one["rounds"] == most > 2 for one in rounds), rounds


def test_gradients_have_the_bits_of_the_cpu(answers: list[Any]) -> None:
    assert [answer["wrong"] for answer in answers] == [[], []]


def test_a_rank_without_tokens_joins(answers: list[Any]) -> None:
    assert all(answer["join"] for answer in answers)


def test_what_cannot_work_says_so(answers: list[Any]) -> None:
    for answer in answers:
        assert "on cuda:0" in answer["untested"]
        assert "MOEWIRE_UNTESTED_DEVICES=1" in answer["untested"]
