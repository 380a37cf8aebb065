"""Stand-ins for what vLLM's engine makes before a layer: its configuration, groups, platform."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from vllm.config import CUDAGraphMode
from vllm.distributed import parallel_state
from vllm.distributed.device_communicators import all2all
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.config import (
    FusedMoEConfig,
    FusedMoEParallelConfig,
    RoutingMethodType,
)
from vllm.platforms import PlatformEnum, current_platform


def engine_config(num_experts: int, max_tokens: int, backend: str = "") -> Any:
    """What of vLLM's configuration is read by communicators and by the plug-in."""
    return SimpleNamespace(
        parallel_config=SimpleNamespace(
            all2all_backend=backend,
            enable_expert_parallel=True,
            expert_placement_strategy="linear",
            enable_eplb=False,
            enable_fault_tolerance=False,
        ),
        compilation_config=SimpleNamespace(cudagraph_mode=CUDAGraphMode.NONE),
        model_config=SimpleNamespace(get_num_experts=lambda: num_experts),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=max_tokens),
        use_cumem_cudagraph_pool=False,
    )


def groups(group: Any) -> None:
    """All ranks are data parallel."""
    ours = SimpleNamespace(rank_in_group=group.rank(), world_size=group.size(), cpu_group=group)
    parallel_state.get_dp_group = lambda: ours
    parallel_state.get_tp_group = lambda: SimpleNamespace(rank_in_group=0, world_size=1)


def manager(group: Any, num_experts: int, max_tokens: int) -> Any:
    """A ``FlatAll2AllManager`` of these ranks."""
    from moewire.integrations.vllm import manager as module

    groups(group)
    config = engine_config(num_experts, max_tokens)
    all2all.get_current_vllm_config = module.get_current_vllm_config = lambda: config
    return module.FlatAll2AllManager(group)


def layer_config(
    rank: int, size: int, num_experts: int, hidden: int, dtype: torch.dtype, backend: str = ""
) -> FusedMoEConfig:
    """Of one layer, its experts spread over all ranks."""
    parallel = FusedMoEParallelConfig(
        tp_size=1,
        pcp_size=1,
        dp_size=size,
        ep_size=size,
        tp_rank=0,
        pcp_rank=0,
        dp_rank=rank,
        ep_rank=rank,
        sp_size=1,
        use_ep=True,
        all2all_backend=backend,
        enable_eplb=False,
    )
    return FusedMoEConfig(
        num_experts=num_experts,
        experts_per_token=4,
        hidden_dim=hidden,
        intermediate_size=hidden,
        num_local_experts=num_experts // size,
        num_logical_experts=num_experts,
        activation=MoEActivation.SILU,
        device="cpu",
        routing_method=RoutingMethodType.Default,
        moe_parallel_config=parallel,
        in_dtype=dtype,
        max_num_tokens=64,
    )


def on_cuda() -> None:
    """vLLM's platform says that it is CUDA. Tensors stay where they can be."""
    current_platform._enum = PlatformEnum.CUDA
    current_platform.device_name = "cuda"
