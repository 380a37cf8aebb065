"""What is replaced on CUDA: nothing to repair there, and vLLM has batched experts of its own.

The flat exchange replaces vLLM's default, as on the CPU. The packed exchange replaces DeepEP's
low-latency one, because vLLM decides by that name: with it vLLM picks batched experts and smaller
steps, and allows dual-batch overlap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import UnsupportedError
from ._plan import FUSED_MOE, Plan, makers
from ._replacement import Replacement

_DEEPEP = "deepep_low_latency"  # --all2all-backend
_QUANTIZATION = "vllm.model_executor.layers.quantization"
# Every module that imported maybe_make_prepare_finalize by name. Modules that make experts for
# quantised activations are included: the exchange then refuses these with a reason.
_MAKERS = (
    *(f"{FUSED_MOE}.{name}" for name in ("all2all_utils", "eep_reconfigure")),
    *(
        f"{FUSED_MOE}.oracle.{name}"
        for name in ("unquantized", "fp8", "int8", "mxfp4", "nvfp4", "w4a8", "w4a8_int8")
    ),
    f"{_QUANTIZATION}.modelopt_block_quant",
    f"{_QUANTIZATION}.utils.humming.moe",
)


def plans(parts: frozenset[str]) -> list[Plan]:
    """What every part needs: nothing."""
    if parts == {"repairs"}:
        raise UnsupportedError("MOEWIRE_VLLM=repairs: they are for the CPU; manager or batched")
    return []


def batched() -> Plan:
    """The packed exchange, without DeepEP's classes: no DeepEP needs to be installed."""
    from vllm.distributed.device_communicators import all2all
    from vllm.model_executor.layers.fused_moe import all2all_utils

    from .batched_manager import BatchedAll2AllManager

    rounded = _own_size(all2all_utils.maybe_roundup_layer_hidden_size)
    todo = [
        Replacement(all2all, "DeepEPLLAll2AllManager", BatchedAll2AllManager),
        Replacement(all2all_utils, "maybe_roundup_layer_hidden_size", rounded),
        *makers(_MAKERS, _is_ours),
    ]
    return Plan(todo, f"packed exchange for batched experts for --all2all-backend {_DEEPEP}")


def _is_ours(config: Any) -> bool:
    return bool(config.use_deepep_ll_kernels)


def _own_size(stock: Callable[..., int]) -> Callable[..., int]:
    """The size itself. DeepEP knows eight hidden sizes and pads to the next; here any works."""

    def rounded(hidden_size: int, act_dtype: Any, moe_parallel_config: Any) -> int:
        if _is_ours(moe_parallel_config):
            return hidden_size
        return stock(hidden_size, act_dtype, moe_parallel_config)

    return rounded
