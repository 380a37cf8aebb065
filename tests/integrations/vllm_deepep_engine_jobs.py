"""vLLM's engine on the CPU with ``--all2all-backend deepep_high_throughput``, data-parallel ranks.

The exchange, its manager, the kernel and the experts are vLLM's. ``_put_in_place`` has what its CPU
platform lacks for them, beside the plug-in's ``repairs``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import vllm_jobs
from vllm.distributed.device_communicators import all2all
from vllm.model_executor.layers.fused_moe import all2all_utils

import moewire.deep_ep
from moewire.compat import deep_ep as alias
from moewire.integrations.vllm import repairs

# bf16, as the exchange wants it. A token's result comes from one rank: no sum is rounded twice.
OPTIONS: dict[str, Any] = {"dtype": "bfloat16", "hf_overrides": {"num_experts_per_tok": 1}}


def alone(rank: int, size: int, _folder: Path, model: str) -> Any:
    """All prompts in one process, without Moewire."""
    return vllm_jobs._texts(vllm_jobs._engine(model, rank, size, **OPTIONS), rank, size)


def high_throughput(rank: int, size: int, _folder: Path, model: str) -> dict[str, Any]:
    """This rank's prompts."""
    _put_in_place()
    calls = _count_calls()
    backend = {"all2all_backend": "deepep_high_throughput"}
    llm = vllm_jobs._engine(model, rank, size, **OPTIONS, **backend)
    llm.apply_model(vllm_jobs._count_steps)
    before, first = dict(calls), vllm_jobs._steps
    texts = vllm_jobs._texts(llm, rank, size)
    return {
        "texts": texts,
        "steps": vllm_jobs._steps - first,
        "calls": {name: calls[name] - before[name] for name in calls},
        "classes": vllm_jobs._classes(llm),
    }


def _put_in_place() -> None:
    alias.install()
    deepep_ht = importlib.import_module(f"{all2all_utils.__package__}.prepare_finalize.deepep_ht")
    # The CPU's communicator makes this manager, whatever back-end is asked for.
    all2all.AgRsAll2AllManager = all2all.DeepEPHTAll2AllManager
    # Imported there on CUDA only.
    all2all_utils.DeepEPHTPrepareAndFinalize = deepep_ht.DeepEPHTPrepareAndFinalize
    deepep_ht._dbo_record_stream = lambda *_: None  # tensors on the CPU have no streams
    local_selections = repairs.local_selections

    def as_int32(*given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The exchange has ids of 64 bits; the kernel of the CPU's experts takes 32."""
        ids, weights = local_selections(*given)
        return ids.int(), weights

    repairs.local_selections = as_int32


def _count_calls() -> dict[str, int]:
    calls = {"dispatch": 0, "combine": 0}
    for name in calls:
        setattr(moewire.deep_ep.Buffer, name, _counted(name, calls))
    return calls


def _counted(name: str, calls: dict[str, int]) -> Callable[..., Any]:
    inner = getattr(moewire.deep_ep.Buffer, name)

    def call(*given: Any, **named: Any) -> Any:
        calls[name] += 1
        return inner(*given, **named)

    return call
