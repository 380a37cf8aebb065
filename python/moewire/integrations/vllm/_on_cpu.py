"""What is replaced on the CPU: repairs of vLLM's expert parallelism, and batched experts.

vLLM's communicator of the CPU knows one ``--all2all-backend``, its default, so the packed
exchange replaces that one, too.
"""

from __future__ import annotations

import importlib
from typing import Any

from . import repairs
from ._plan import AG_RS, FUSED_MOE, Plan, makers
from ._replacement import Replacement

# Every module that imported maybe_make_prepare_finalize by name and may run on the CPU.
_MAKERS = ("all2all_utils", "eep_reconfigure", "oracle.unquantized")


def plans(_parts: frozenset[str]) -> list[Plan]:
    """What every part needs."""
    return [Plan(repairs.replacements(), "repairs of expert parallelism on the CPU")]


def batched() -> Plan:
    """The packed exchange, and experts for it."""
    from vllm.model_executor.layers.fused_moe.config import FusedMoEParallelConfig

    from .cpu_experts import CPUBatchedExperts

    unquantized: Any = importlib.import_module(f"{FUSED_MOE}.oracle.unquantized")
    stock_classes = unquantized.backend_to_kernel_cls
    cpu = unquantized.UnquantizedMoeBackend.CPU

    def classes(backend: Any) -> Any:
        ours = [CPUBatchedExperts] if backend == cpu else []
        return [*ours, *stock_classes(backend)]

    todo = [
        Replacement(FusedMoEParallelConfig, "use_batched_activation_format", property(_is_ours)),
        Replacement(unquantized, "backend_to_kernel_cls", classes),
        *makers((f"{FUSED_MOE}.{name}" for name in _MAKERS), _is_ours),
    ]
    return Plan(todo, f"packed exchange for batched experts for --all2all-backend {AG_RS}")


def _is_ours(config: Any) -> bool:
    return bool(config.use_all2all_kernels and config.all2all_backend == AG_RS)
