"""From vLLM's configuration of a layer to its exchange."""

from __future__ import annotations

from typing import Any

from vllm.config import get_current_vllm_config
from vllm.distributed import get_ep_group

from . import _sizes
from .batched import BatchedPrepareAndFinalize


def batched(moe: Any) -> BatchedPrepareAndFinalize:
    """The exchange for one layer; ``moe`` is its ``FusedMoEConfig``."""
    _sizes.refuse_config(get_current_vllm_config())
    group = get_ep_group()
    sizes = _sizes.Sizes(
        group.world_size,
        moe.num_experts,
        moe.max_num_tokens,
        moe.hidden_dim,
        moe.experts_per_token,
        moe.in_dtype,
    )
    return BatchedPrepareAndFinalize(_sizes.checked(sizes), group.cpu_group)
