"""What the ranks do inside vLLM. Each job answers with plain values; the tests check them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import vllm_contract
import vllm_model as tiny

import moewire.integrations.vllm as plugin
from moewire.integrations import _engines, _plugin
from moewire.integrations.vllm import _float32

_steps = 0  # of the model in this process


def make(_rank: int, _size: int, _folder: Path, model: str) -> None:
    """Writes the model."""
    tiny.make(Path(model))


def alone(rank: int, size: int, _folder: Path, model: str) -> Any:
    """All prompts in one process."""
    return _texts(_engine(model, rank, size), rank, size)


def distributed(rank: int, size: int, _folder: Path, model: str) -> dict[str, Any]:
    """This rank's prompts; then again with a flipped bit, and with swapped tokens."""
    llm = _engine(model, rank, size)
    llm.apply_model(_count_steps)
    before, first = _counts(), _steps
    texts = _texts(llm, rank, size)
    after = _counts()
    answer = {
        "texts": texts,
        "steps": _steps - first,
        "dispatches": after[0] - before[0],
        "combines": after[1] - before[1],
        "buffers": len(plugin.buffers()),
        "active": _plugin.active(_engines.VLLM),
        "classes": _classes(llm),
    }
    answer["contract"] = vllm_contract.check(rank, size)
    plugin.close()
    os.environ["MOEWIRE_TEST_CORRUPT"] = "1"
    answer["corrupted"] = _texts(llm, rank, size)
    plugin.close()
    del os.environ["MOEWIRE_TEST_CORRUPT"]
    _swap_tokens()
    answer["swapped"] = _texts(llm, rank, size)
    plugin.close()
    return answer


def _swap_tokens() -> None:
    """Results come back in the wrong order, as from an exchange that is broken."""
    right = _float32.merge
    _float32.merge = lambda parts: right(parts).flip(0)


def stock(rank: int, size: int, _folder: Path, model: str) -> dict[str, Any]:
    """Without Moewire's exchange: the outcome, and what is still vLLM's own."""
    answer: dict[str, Any] = {"failure": None, "texts": None}
    try:
        answer["texts"] = _texts(_engine(model, rank, size), rank, size)
    except NotImplementedError as error:
        import traceback

        answer["failure"] = traceback.extract_tb(error.__traceback__)[-1].name
    answer["active"] = _plugin.active(_engines.VLLM)
    answer["untouched"] = _untouched()
    answer["buffers"] = len(plugin.buffers())
    return answer


def _engine(model: str, rank: int, size: int, **options: Any) -> Any:
    from vllm import LLM

    if size > 1:
        os.environ.update(
            VLLM_DP_RANK=str(rank),
            VLLM_DP_RANK_LOCAL=str(rank),
            VLLM_DP_SIZE=str(size),
            VLLM_DP_MASTER_IP="127.0.0.1",
        )
    return LLM(
        model=model,
        skip_tokenizer_init=True,
        enforce_eager="MOEWIRE_TEST_COMPILE" not in os.environ,
        dtype=options.pop("dtype", os.environ.get("MOEWIRE_TEST_DTYPE", "float32")),
        kv_cache_memory_bytes=64 << 20,
        max_model_len=128,
        max_num_seqs=8,
        max_num_batched_tokens=256,
        enable_prefix_caching=False,  # the second time is to be like the first
        distributed_executor_backend="uni",
        disable_log_stats=True,
        enable_expert_parallel=size > 1,
        **options,
    )


def _texts(llm: Any, rank: int, size: int) -> list[dict[str, Any]]:
    """Token ids of each text, and the sum of their logarithmic probabilities."""
    from vllm import SamplingParams

    asked = [
        SamplingParams(
            temperature=0, max_tokens=number, ignore_eos=True, detokenize=False, logprobs=0
        )
        for number in tiny.NEW_TOKENS[rank::size]
    ]
    texts = [{"prompt_token_ids": ids} for ids in tiny.prompts(rank, size)]
    outputs = [one.outputs[0] for one in llm.generate(texts, asked, use_tqdm=False)]
    return [{"ids": list(one.token_ids), "logprob": one.cumulative_logprob} for one in outputs]


def _count_steps(model: Any) -> None:
    """vLLM calls the model once per step, dummy steps included."""

    def count(*_: Any) -> None:
        global _steps
        _steps += 1

    model.register_forward_pre_hook(count)


def _counts() -> tuple[int, int]:
    found = [buffer.counters() for buffer in plugin.buffers()]
    return (
        sum(one["num_dispatches"] for one in found),
        sum(one["num_combines"] for one in found),
    )


def _classes(llm: Any) -> list[str]:
    """The names of what the layers exchange and compute with."""
    from vllm.distributed import get_ep_group

    def of(model: Any) -> list[str]:
        kernels = (getattr(part, "quant_method", None) for part in model.modules())
        kernels = [getattr(one, "moe_kernel", None) for one in kernels]
        return sorted(
            {
                type(part).__name__
                for kernel in kernels
                if kernel is not None
                for part in (kernel.prepare_finalize, kernel.fused_experts)
            }
        )

    manager = type(get_ep_group().device_communicator.all2all_manager).__name__
    return [manager, *llm.apply_model(of)[0]]


def _untouched() -> bool:
    from vllm.distributed.device_communicators import all2all, cpu_communicator
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts
    from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

    names = (
        all2all.AgRsAll2AllManager.__module__,
        CPUUnquantizedExperts.apply.__module__,
        MoERunner._select_forward.__module__,
    )
    own = "all_gatherv" in vars(cpu_communicator.CpuCommunicator)
    return not own and all(name.startswith("vllm.") for name in names)
