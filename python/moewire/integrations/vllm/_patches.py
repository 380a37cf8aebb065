"""Where vLLM 0.32.0's names are replaced. Its functions are imported by name in many modules."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from ._replacement import Replacement

_FUSED_MOE = "vllm.model_executor.layers.fused_moe"
# Every module that imported maybe_make_prepare_finalize by name and may run on the CPU.
_MAKERS = ("all2all_utils", "eep_reconfigure", "oracle.unquantized")
_IN_PLACE = "allgather_reducescatter"  # the --all2all-backend whose place is taken


def install(parts: frozenset[str]) -> str:
    """Replaces what ``parts`` need; what was done, in words. Idempotent, not reversible.

    Everything is looked up before the first replacement: if anything is raised, such as
    ``UnsupportedError`` on any platform but the CPU, nothing is replaced.
    """
    _refuse_other_platforms()
    if {"manager", "batched"} <= parts:
        from ...errors import InvalidArgument

        raise InvalidArgument("MOEWIRE_VLLM: manager and batched given; one of them")
    from . import repairs

    todo, done = repairs.replacements(), ["repairs of expert parallelism on the CPU"]
    if "manager" in parts:
        todo += _manager()
        done.append(f"flat exchange for --all2all-backend {_IN_PLACE}")
    if "batched" in parts:
        todo += _batched()
        done.append(f"packed exchange for batched experts for --all2all-backend {_IN_PLACE}")
    for one in todo:
        one.refuse_unknown()
    for one in todo:
        one.make()
    return ", ".join(done)


def _refuse_other_platforms() -> None:
    from vllm.platforms import current_platform

    from ...errors import UnsupportedError

    if not current_platform.is_cpu():
        raise UnsupportedError(
            f"moewire exchanges CPU tensors only, and vLLM runs on {current_platform.device_name}"
        )


def _manager() -> list[Replacement]:
    from vllm.distributed.device_communicators import all2all

    from .manager import FlatAll2AllManager

    # The communicators import it when they use it.
    return [Replacement(all2all, "AgRsAll2AllManager", FlatAll2AllManager)]


def _batched() -> list[Replacement]:
    from vllm.model_executor.layers.fused_moe.config import FusedMoEParallelConfig

    from .cpu_experts import CPUBatchedExperts

    unquantized: Any = importlib.import_module(f"{_FUSED_MOE}.oracle.unquantized")
    stock_classes = unquantized.backend_to_kernel_cls
    cpu = unquantized.UnquantizedMoeBackend.CPU

    def classes(backend: Any) -> Any:
        ours = [CPUBatchedExperts] if backend == cpu else []
        return [*ours, *stock_classes(backend)]

    todo = [
        Replacement(FusedMoEParallelConfig, "use_batched_activation_format", property(_is_ours)),
        Replacement(unquantized, "backend_to_kernel_cls", classes),
    ]
    for name in _MAKERS:
        module: Any = importlib.import_module(f"{_FUSED_MOE}.{name}")
        stock = module.maybe_make_prepare_finalize
        todo.append(Replacement(module, "maybe_make_prepare_finalize", _maker(stock)))
    return todo


def _is_ours(config: Any) -> bool:
    return bool(config.use_all2all_kernels and config.all2all_backend == _IN_PLACE)


def _maker(stock: Callable[..., Any]) -> Callable[..., Any]:
    def make(moe: Any, *arguments: Any, **named: Any) -> Any:
        if not _is_ours(moe.moe_parallel_config):
            return stock(moe, *arguments, **named)
        from . import _making

        return _making.batched(moe)

    return make
