"""The sizes that all ranks agree on, read from vLLM's configuration."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ...errors import InvalidArgument

_DTYPES = (torch.bfloat16, torch.float32)


class Sizes(NamedTuple):
    """The sizes of one exchange."""

    num_ranks: int  # R
    num_experts: int  # E, a multiple of R
    max_tokens: int  # M, of one rank in one step
    hidden: int  # H
    num_topk: int  # K
    dtype: torch.dtype  # of rows: bf16 or float32


def checked(sizes: Sizes) -> Sizes:
    """The same sizes; raises ``InvalidArgument`` that names what cannot work."""
    if sizes.dtype not in _DTYPES:
        raise InvalidArgument(f"--dtype: {sizes.dtype}; bfloat16 or float32 with MOEWIRE_VLLM")
    if sizes.num_experts % sizes.num_ranks:
        raise InvalidArgument(
            f"experts: {sizes.num_experts} over {sizes.num_ranks} expert-parallel ranks; a "
            "multiple of them"
        )
    return sizes


def refuse_config(config: Any) -> None:
    """Refuses what of vLLM's whole configuration cannot work, on any platform."""
    refuse_placement(config.parallel_config)
    refuse_fault_tolerance(config.parallel_config)
    refuse_graphs(config.compilation_config)


def refuse_fault_tolerance(parallel_config: Any) -> None:
    """With fault tolerance vLLM asks the manager for masks of lost ranks, as DeepEP has them."""
    if parallel_config.enable_fault_tolerance:
        raise InvalidArgument("--enable-fault-tolerance: MOEWIRE_VLLM does not support it yet")


def refuse_graphs(compilation_config: Any) -> None:
    """A replayed CUDA graph runs no Python code, so a lost rank would stay unnoticed.

    The flat exchange could not be captured anyway: the host needs its number of rows.
    """
    mode = compilation_config.cudagraph_mode
    if mode:
        raise InvalidArgument(
            f"cudagraph_mode: {mode}; NONE (--enforce-eager has it) with MOEWIRE_VLLM"
        )


def refuse_placement(parallel_config: Any) -> None:
    """Refuses what moves experts: expert e must stay on rank e // L."""
    strategy = getattr(parallel_config, "expert_placement_strategy", "linear")
    if strategy != "linear":
        raise InvalidArgument(f"--expert-placement-strategy: {strategy}; linear with MOEWIRE_VLLM")
    if parallel_config.enable_eplb:
        raise InvalidArgument("--enable-eplb: MOEWIRE_VLLM does not support it yet")


def refuse_topk_over_one(topk_ids: torch.Tensor) -> None:
    """Scaling the input replaces scaling the result only if a token has one selection."""
    if topk_ids.shape[1] != 1:
        raise InvalidArgument(
            f"apply_router_weight_on_input: with {topk_ids.shape[1]} selections per token; 1"
        )
