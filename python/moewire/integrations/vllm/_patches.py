"""Where vLLM 0.32.0's names are replaced. Its functions are imported by name in many modules."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

_FUSED_MOE = "vllm.model_executor.layers.fused_moe"
# Every module that imported maybe_make_prepare_finalize by name and may run on the CPU.
_MAKERS = ("all2all_utils", "eep_reconfigure", "oracle.unquantized")
_IN_PLACE = "allgather_reducescatter"  # the --all2all-backend whose place is taken


def install(parts: frozenset[str]) -> str:
    """Replaces what ``parts`` need; what was done, in words. Not reversible.

    Raises:
        UnsupportedError: on any platform but the CPU; nothing is replaced then.
    """
    _refuse_other_platforms()
    if {"manager", "batched"} <= parts:
        from ...errors import InvalidArgument

        raise InvalidArgument("MOEWIRE_VLLM: manager and batched given; one of them")
    from . import repairs

    repairs.install()
    done = ["repairs of expert parallelism on the CPU"]
    if "manager" in parts:
        done.append(_install_manager())
    if "batched" in parts:
        done.append(_install_batched())
    return ", ".join(done)


def _refuse_other_platforms() -> None:
    from vllm.platforms import current_platform

    from ...errors import UnsupportedError

    if not current_platform.is_cpu():
        raise UnsupportedError(
            f"moewire exchanges CPU tensors only, and vLLM runs on {current_platform.device_name}"
        )


def _install_manager() -> str:
    from vllm.distributed.device_communicators import all2all

    from .manager import FlatAll2AllManager

    all2all.AgRsAll2AllManager = FlatAll2AllManager  # imported by the communicators when used
    return f"flat exchange for --all2all-backend {_IN_PLACE}"


def _install_batched() -> str:
    from vllm.model_executor.layers.fused_moe.config import FusedMoEParallelConfig

    from .cpu_experts import CPUBatchedExperts

    FusedMoEParallelConfig.use_batched_activation_format = property(_is_ours)
    unquantized: Any = importlib.import_module(f"{_FUSED_MOE}.oracle.unquantized")
    stock_classes = unquantized.backend_to_kernel_cls
    cpu = unquantized.UnquantizedMoeBackend.CPU
    unquantized.backend_to_kernel_cls = lambda backend: (
        [CPUBatchedExperts, *stock_classes(backend)] if backend == cpu else stock_classes(backend)
    )
    for name in _MAKERS:
        module: Any = importlib.import_module(f"{_FUSED_MOE}.{name}")
        module.maybe_make_prepare_finalize = _maker(module.maybe_make_prepare_finalize)
    return f"packed exchange for batched experts for --all2all-backend {_IN_PLACE}"


def _is_ours(config: Any) -> bool:
    return bool(config.use_all2all_kernels and config.all2all_backend == _IN_PLACE)


def _maker(stock: Callable[..., Any]) -> Callable[..., Any]:
    def make(moe: Any, *arguments: Any, **named: Any) -> Any:
        if not _is_ours(moe.moe_parallel_config):
            return stock(moe, *arguments, **named)
        from . import _making

        return _making.batched(moe)

    return make
