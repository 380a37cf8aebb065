"""vLLM's engine on the CPU, two data-parallel ranks, its experts' exchange replaced.

Everything in float32, where the texts of two ranks and of one process are the same token for
token. One launch of two ranks serves all tests of one way in.
"""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import pytest
import vllm_model as tiny
from engine_server import EngineServer

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "vllm_two_ranks.py"
WAYS = ("manager", "batched")
SECONDS = 240.0
# Of sums of logarithms near -75. Two ranks are 1e-5 away, a flipped bit 4e-4.
CLOSE = 1e-4

pytestmark = [pytest.mark.multirank, pytest.mark.slow]


def launch(server: EngineServer, size: int, job: str, *arguments: Any, **environment: str) -> Any:
    """Ranks of one engine; ``environment`` has the switch."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    return server.run(
        size,
        f"vllm_jobs.{job}",
        *arguments,
        timeout=SECONDS,
        group=False,
        VLLM_DP_MASTER_PORT=port,
        **environment,
    )


@pytest.fixture(scope="session")
def model(vllm_server: EngineServer, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The model's folder."""
    folder = str(tmp_path_factory.mktemp("vllm") / "model")
    launch(vllm_server, 1, "make", folder)
    return folder


@pytest.fixture(scope="session")
def alone(vllm_server: EngineServer, model: str) -> Any:
    """The texts of one process without Moewire."""
    return launch(vllm_server, 1, "alone", model)[0]


@pytest.fixture(scope="session", params=WAYS)
def distributed(
    request: pytest.FixtureRequest, vllm_server: EngineServer, model: str, wrong_library: str
) -> Any:
    """What two ranks answered, and the way in."""
    environment = {"MOEWIRE_VLLM": request.param, "MOEWIRE_LIBRARY": wrong_library}
    answers = launch(vllm_server, 2, "distributed", model, **environment)
    return request.param, answers


def in_order(answers: list[Any], key: str, field: str) -> list[Any]:
    """The ranks' texts in the order of one process."""
    return [answers[at % 2][key][at // 2][field] for at in range(len(tiny.LENGTHS))]


def test_token_ids_are_those_of_one_process(distributed: Any, alone: Any) -> None:
    _, answers = distributed
    assert [len(text["ids"]) for text in alone] == list(tiny.NEW_TOKENS)
    assert in_order(answers, "texts", "ids") == [text["ids"] for text in alone]


def test_probabilities_are_those_of_one_process(distributed: Any, alone: Any) -> None:
    _, answers = distributed
    expected = [text["logprob"] for text in alone]
    assert in_order(answers, "texts", "logprob") == pytest.approx(expected, abs=CLOSE)


def test_one_dispatch_and_combine_per_layer_and_step(distributed: Any) -> None:
    """The core's own counts: none, if another exchange had run."""
    _, answers = distributed
    for answer in answers:
        assert answer["steps"] >= max(tiny.NEW_TOKENS)  # steps of an idle rank, too
        assert answer["dispatches"] == answer["steps"] * tiny.LAYERS
        assert answer["combines"] == answer["steps"] * tiny.LAYERS
        assert answer["buffers"] == 1


def test_our_classes_are_in_place_and_say_so(distributed: Any) -> None:
    way, answers = distributed
    expected = {
        "manager": ["FlatAll2AllManager", "MoEPrepareAndFinalizeNaiveDPEPModular"],
        "batched": ["AgRsAll2AllManager", "BatchedPrepareAndFinalize", "CPUBatchedExperts"],
    }[way]
    for answer in answers:
        assert set(expected) <= set(answer["classes"])
        assert {"manager": "flat", "batched": "packed"}[way] in answer["active"]


def test_the_contract_with_vllms_experts(distributed: Any) -> None:
    way, answers = distributed
    own = {"manager": "stands_for_nobody", "batched": "on_input"}[way]
    for answer in answers:
        assert answer["contract"]["wrong"] == []
        assert answer["contract"]["micro_batches"]
        assert answer["contract"]["after_exception"]
        assert answer["contract"][own]


def test_what_cannot_work_says_so(distributed: Any) -> None:
    way, answers = distributed
    words = {
        "manager": {"dtype": "--dtype: torch.float16", "tensor_parallel": "--tensor-parallel-size"},
        "batched": {"quantised": "float8", "on_input": "4 selections", "reduction": "NoOP"},
    }[way]
    for answer in answers:
        for case, word in words.items():
            assert word in answer["contract"]["refused"][case]


def test_a_flipped_bit_is_noticed(distributed: Any, alone: Any) -> None:
    """The lowest of one value of one token in each combine: enough for the probabilities."""
    _, answers = distributed
    expected = [text["logprob"] for text in alone]
    assert in_order(answers, "corrupted", "logprob") != pytest.approx(expected, abs=CLOSE)


def test_a_broken_exchange_gives_other_token_ids(distributed: Any, alone: Any) -> None:
    _, answers = distributed
    assert in_order(answers, "swapped", "ids") != [text["ids"] for text in alone]


def test_vllm_by_itself_fails(vllm_server: EngineServer, model: str) -> None:
    """Off, the plug-in touches nothing, and vLLM's own exchange is not there on the CPU."""
    for answer in launch(vllm_server, 2, "stock", model):
        assert answer["failure"] == "all_gatherv"
        assert answer["untouched"] and answer["active"] is None and answer["buffers"] == 0


def test_repairs_alone_let_vllms_own_exchange_work(
    vllm_server: EngineServer, model: str, alone: Any
) -> None:
    answers = launch(vllm_server, 2, "stock", model, MOEWIRE_VLLM="repairs")
    assert in_order(answers, "texts", "ids") == [text["ids"] for text in alone]
    for answer in answers:
        assert answer["failure"] is None and answer["buffers"] == 0
        assert not answer["untouched"]


def test_the_example_runs(vllm_server: EngineServer, model: str) -> None:
    output = vllm_server.program(str(EXAMPLE), model, MOEWIRE_VLLM="1")
    assert len(re.findall(r"^rank [01]: \[.*\] -> \[\d+(, \d+){7}\]$", output, re.M)) == 4, output
    calls = re.findall(r"^rank [01]: (\d+) dispatches through Moewire$", output, re.M)
    assert len(calls) == 2 and calls[0] == calls[1] and int(calls[0]) >= 8 * tiny.LAYERS
