"""The vLLM plug-in where a GPU would run it: overlapped micro-batches, and what CUDA's code picks.

The tests call vLLM's own kernel, contexts and communicator; tensors are on the CPU.
"""

from __future__ import annotations

from typing import Any

import host_jobs
import pytest
from engine_server import EngineServer

pytestmark = [pytest.mark.multirank, pytest.mark.slow]

FORMS = ("packed", "flat")
DTYPES = ("torch.bfloat16", "torch.float32")
LAYERS = {"packed": 3, "flat": 1}
DEADLINE = "20000000"


def run(server: EngineServer, size: int, job: str, *arguments: Any, **environment: str) -> Any:
    return server.run(size, job, *arguments, MOEWIRE_VLLM_TIMEOUT_US=DEADLINE, **environment)


@pytest.fixture(scope="module", params=FORMS)
def overlapped(request: pytest.FixtureRequest, vllm_server: EngineServer) -> Any:
    """Two micro-batches through layers, on two ranks: the form, and what the ranks say."""
    job = f"vllm_overlap_jobs.in_{request.param}_form"
    return request.param, run(vllm_server, 2, job, False)


def test_each_micro_batch_gets_its_own_results(overlapped: Any) -> None:
    _, answers = overlapped
    for answer in answers:
        assert [answer[dtype] for dtype in DTYPES] == [[True, True]] * 2
        assert answer["open"] == 0


def test_one_dispatch_and_combine_per_layer_and_micro_batch(overlapped: Any) -> None:
    """The core's own counts."""
    form, answers = overlapped
    for answer in answers:
        expected = 2 * LAYERS[form] * len(DTYPES)
        assert (answer["num_dispatches"], answer["num_combines"]) == (expected, expected)


@pytest.mark.parametrize("overlapped", ["packed"], indirect=True)
def test_steps_come_in_the_order_of_dual_batch_overlap(overlapped: Any) -> None:
    """The other micro-batch waits for a micro-batch's rows, before its own next step."""
    _, answers = overlapped
    for answer in answers:
        assert answer["trace"] == [
            "dispatch 0 by 0",
            "dispatch ends 0 by 1",
            "dispatch 1 by 1",
            "dispatch read 0 by 0",
            "dispatch ends 1 by 0",
            "combine 0 by 0",
            "dispatch read 1 by 1",
            "combine ends 0 by 1",
            "combine 1 by 1",
            "combine read 0 by 0",
            "combine ends 1 by 0",
            "combine read 1 by 1",
        ]


def test_swapped_handles_are_noticed(vllm_server: EngineServer) -> None:
    """The manager's state of each micro-batch, given to the other: it fits, and results are
    wrong."""
    for answer in run(vllm_server, 2, "vllm_overlap_jobs.in_flat_form", True):
        assert answer[DTYPES[0]] == [False, False]


def test_swapped_packed_handles_are_refused(vllm_server: EngineServer) -> None:
    """The core checks more of packed handles than their sizes."""
    with pytest.raises(AssertionError, match=r"InvalidArgument: .*topk_idx.* the dispatch had"):
        run(vllm_server, 2, "vllm_overlap_jobs.in_packed_form", True)


@pytest.mark.parametrize("switch", ["1", "batched", "repairs"])
def test_cuda_is_refused_before_anything_is_touched(vllm_server: EngineServer, switch: str) -> None:
    """vLLM goes on as it is: nothing is raised. And it may still fork: no library was loaded."""
    switches = {"MOEWIRE_VLLM": switch, "VLLM_PLUGINS": "moewire"}
    (answer,) = run(vllm_server, 1, "vllm_selection_jobs.refused", **switches)
    assert answer["said"] == [
        "ERROR: vLLM runs without moewire: vLLM runs on cuda, and this version of Moewire "
        "takes tensors on cpu only (fix: export MOEWIRE_UNTESTED_DEVICES=1   (to try cuda, on "
        "which it was never run))"
    ]
    assert answer["changed"] == [] and answer["active"] is None and not answer["loaded"]


@pytest.mark.parametrize("form", FORMS)
def test_two_micro_batches_on_cuda(vllm_server: EngineServer, cuda_driver: str, form: str) -> None:
    """Over an emulated device; the packed form through vLLM's own kernel."""
    for answer in run(vllm_server, 2, "vllm_cuda_jobs.overlapped", cuda_driver, form):
        assert [answer[dtype] for dtype in DTYPES] == [[True, True]] * 2
        expected = 2 * LAYERS[form] * len(DTYPES)
        assert (answer["num_dispatches"], answer["num_combines"]) == (expected, expected)
        assert answer["open"] == 0


# Each form and each device once: what differs in other pairs is not between hosts.
@pytest.mark.parametrize(
    ("form", "on_cuda"),
    [
        ("packed", True),
        ("flat", False),
        pytest.param("packed", False, marks=pytest.mark.long),
        pytest.param("flat", True, marks=pytest.mark.long),
    ],
)
def test_two_micro_batches_between_hosts(
    vllm_server: EngineServer, cuda_driver: str, form: str, on_cuda: bool
) -> None:
    on_cpu = [f"vllm_overlap_jobs.in_{form}_form", False]
    job = ["vllm_cuda_jobs.overlapped", cuda_driver, form] if on_cuda else on_cpu
    for answer in run(vllm_server, 2, "host_jobs.remote", *job, **host_jobs.VARIABLES):
        assert [answer[dtype] for dtype in DTYPES] == [[True, True]] * 2
        assert answer["open"] == 0


@pytest.mark.parametrize("form", FORMS)
def test_the_contract_with_vllms_experts_on_cuda(
    vllm_server: EngineServer, cuda_driver: str, form: str
) -> None:
    own = {"flat": "stands_for_nobody", "packed": "on_input"}[form]
    for answer in run(vllm_server, 2, "vllm_cuda_jobs.contract", cuda_driver, form):
        assert answer["wrong"] == []
        assert answer["micro_batches"] and answer["after_exception"] and answer[own]
        if form == "flat":
            assert min(answer["launched"].values()) > 0 and answer["open"] == 0
            assert "--dtype: torch.float16" in answer["refused"]["dtype"]


def test_a_late_rank_fails_the_step_on_cuda(vllm_server: EngineServer, cuda_driver: str) -> None:
    words, _ = run(vllm_server, 2, "vllm_cuda_jobs.late", cuda_driver)
    assert len(words) == len(DTYPES)
    assert all("ranks [1] were lost" in said for said in words), words


def test_the_manager_that_cuda_picks(vllm_server: EngineServer) -> None:
    switches = {"MOEWIRE_VLLM": "manager", "MOEWIRE_UNTESTED_DEVICES": "1"}
    (answer,) = run(vllm_server, 1, "vllm_selection_jobs.taken", "manager", **switches)
    all2all = "vllm.distributed.device_communicators.all2all"
    assert answer["manager"] == "FlatAll2AllManager"
    assert answer["changed"] == [f"{all2all}.AgRsAll2AllManager"]
    assert answer["makers"][0] == 0  # of layers: vLLM's own
    assert "cudagraph_mode: FULL_DECODE_ONLY" in answer["refused"]["graphs"]
    assert "--enable-fault-tolerance" in answer["refused"]["faults"]


def test_what_cuda_picks_once_its_tensors_are_taken(vllm_server: EngineServer) -> None:
    switches = {"MOEWIRE_VLLM": "batched", "MOEWIRE_UNTESTED_DEVICES": "1"}
    (answer,) = run(vllm_server, 1, "vllm_selection_jobs.taken", "batched", **switches)
    all2all = "vllm.distributed.device_communicators.all2all"
    utils = "vllm.model_executor.layers.fused_moe.all2all_utils"
    replaced, places = answer["makers"]
    assert answer["manager"] == "BatchedAll2AllManager"
    exchange = answer["exchange"], answer["format"]
    assert exchange == ("BatchedPrepareAndFinalize", "BatchedExperts")
    assert (answer["backend"], answer["experts"]) == ("BATCHED_TRITON", "BatchedTritonExperts")
    assert answer["hidden"] == 136 and answer["num_sms"] == 0
    assert "asked for DeepEP's buffer" in answer["handle"]
    own = [f"{all2all}.DeepEPLLAll2AllManager", f"{utils}.maybe_roundup_layer_hidden_size"]
    assert answer["changed"] == own and replaced == places
    assert "cudagraph_mode: FULL_DECODE_ONLY" in answer["refused"]["graphs"]
    assert "--enable-fault-tolerance" in answer["refused"]["faults"]
    assert "repairs" not in answer["said"][0]
