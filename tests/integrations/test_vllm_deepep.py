"""vLLM's back-ends ``deepep_high_throughput`` and ``deepep_v2``, over Moewire in DeepEP's place.

vLLM's managers, exchanges and kernel are those of its wheel, unchanged. Tensors are on the CPU.
Of vLLM 0.33.0 the two files of the exchanges are run, over the wheel of 0.32.0.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import host_jobs
import published_source
import pytest
import vllm_model as tiny
from engine_server import EngineServer

pytestmark = [pytest.mark.multirank, pytest.mark.slow]

RIGHT = {"wrong": [], "cases": 8, "ours": True}
FP8 = pytest.mark.parametrize("fp8", [False, True], ids=["bf16", "fp8"])


@pytest.fixture(scope="module", params=["0.32.0", "0.33.0"])
def source(request: pytest.FixtureRequest) -> str:
    """The folder that the exchanges come from, over the wheel 0.32.0; "": from that wheel."""
    newer = published_source.NEXT_EXCHANGES
    return str(published_source.folder(newer)) if request.param == newer.version else ""


@FP8
def test_high_throughput(vllm_server: EngineServer, source: str, fp8: bool) -> None:
    assert vllm_server.run(2, "vllm_deepep_jobs.high_throughput", source, fp8) == [RIGHT] * 2


@FP8
@pytest.mark.parametrize("graphs", [False, True], ids=["prefill", "decode"])
def test_second_version(vllm_server: EngineServer, source: str, fp8: bool, graphs: bool) -> None:
    job = "vllm_deepep_jobs.second_version", source, fp8, graphs
    assert vllm_server.run(2, *job) == [RIGHT] * 2


def test_between_hosts(vllm_server: EngineServer) -> None:
    job = "vllm_deepep_jobs.high_throughput", "", False
    assert vllm_server.run(2, "host_jobs.remote", *job, **host_jobs.VARIABLES) == [RIGHT] * 2


def test_two_micro_batches(vllm_server: EngineServer, source: str) -> None:
    """Each keeps the handle of its own dispatch while the other one dispatches."""
    for answer in vllm_server.run(2, "vllm_deepep_jobs.two_micro_batches", source):
        assert answer["right"] == [True, True]
        assert answer["order"] == ["dispatch", "dispatch", "combine", "combine"] * 2


def _launch(server: EngineServer, size: int, job: str, model: str) -> Any:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    environment = {"VLLM_DP_MASTER_PORT": port, "MOEWIRE_VLLM": "repairs" if size > 1 else "0"}
    return server.run(size, job, model, timeout=240.0, group=False, **environment)


def test_an_engine(vllm_server: EngineServer, tmp_path: Path) -> None:
    """Two data-parallel ranks: the tokens and the probabilities of one process without Moewire."""
    model = str(tmp_path / "model")
    _launch(vllm_server, 1, "vllm_jobs.make", model)
    (alone,) = _launch(vllm_server, 1, "vllm_deepep_engine_jobs.alone", model)
    answers = _launch(vllm_server, 2, "vllm_deepep_engine_jobs.high_throughput", model)
    assert [answers[n % 2]["texts"][n // 2] for n in range(len(tiny.LENGTHS))] == alone
    for answer in answers:
        assert answer["steps"] > 0
        layers = answer["steps"] * tiny.LAYERS
        assert answer["calls"] == {"dispatch": layers, "combine": layers}
        assert {"DeepEPHTAll2AllManager", "DeepEPHTPrepareAndFinalize"} <= set(answer["classes"])
