"""vLLM's back-ends ``deepep_high_throughput`` and ``deepep_v2``, over Moewire in DeepEP's place.

vLLM's managers, exchanges and kernel are those of its wheel, unchanged. Tensors are on the CPU.
Of vLLM 0.33.0 the two files of the exchanges are run, over the wheel of 0.32.0.
"""

from __future__ import annotations

import host_jobs
import published_source
import pytest
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
