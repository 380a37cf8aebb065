"""vLLM's back-ends ``deepep_high_throughput`` and ``deepep_v2``, over Moewire in DeepEP's place.

vLLM's managers, exchanges and kernel are those of its wheel, unchanged. Tensors are on the CPU.
"""

from __future__ import annotations

import host_jobs
import pytest
from engine_server import EngineServer

pytestmark = [pytest.mark.multirank, pytest.mark.slow]

RIGHT = {"wrong": [], "cases": 8, "ours": True}
FP8 = pytest.mark.parametrize("fp8", [False, True], ids=["bf16", "fp8"])


@FP8
def test_high_throughput(vllm_server: EngineServer, fp8: bool) -> None:
    assert vllm_server.run(2, "vllm_deepep_jobs.high_throughput", fp8) == [RIGHT] * 2


@FP8
@pytest.mark.parametrize("graphs", [False, True], ids=["prefill", "decode"])
def test_second_version(vllm_server: EngineServer, fp8: bool, graphs: bool) -> None:
    assert vllm_server.run(2, "vllm_deepep_jobs.second_version", fp8, graphs) == [RIGHT] * 2


def test_between_hosts(vllm_server: EngineServer) -> None:
    job = "vllm_deepep_jobs.high_throughput", False
    assert vllm_server.run(2, "host_jobs.remote", *job, **host_jobs.VARIABLES) == [RIGHT] * 2


def test_two_micro_batches(vllm_server: EngineServer) -> None:
    """Each keeps the handle of its own dispatch while the other one dispatches."""
    for answer in vllm_server.run(2, "vllm_deepep_jobs.two_micro_batches"):
        assert answer["right"] == [True, True]
        assert answer["order"] == ["dispatch", "dispatch", "combine", "combine"] * 2
