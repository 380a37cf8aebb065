"""What every launch of SGLang's back-end for Mooncake's store has imported already.

The back-end, its base and the pools of pages are the real ones. What they import of kernels,
quantization and attention, and Triton, are placeholders: they work on a GPU, and nothing here calls
them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sglang_light
import torch

torch.set_num_threads(1)
sglang_light.prepare(
    "sglang.srt.layers.attention",
    "sglang.srt.layers.quantization",
    "sglang.srt.layers.radix_attention",
    "triton",
)

import triton  # noqa: E402


def _decorator(*given: Any, **options: Any) -> Any:
    """Leaves a function as it is, with arguments or without."""
    whole: Callable[[Any], Any] = lambda function: function  # noqa: E731
    return given[0] if len(given) == 1 and callable(given[0]) and not options else whole


triton.jit = triton.autotune = triton.heuristics = _decorator

import sglang.srt.mem_cache.memory_pool  # noqa: E402
import sglang.srt.mem_cache.pool_host.mha  # noqa: E402
import sglang.srt.mem_cache.pool_host.mla  # noqa: E402
import sglang.srt.mem_cache.storage.backend_factory  # noqa: E402
import sglang.srt.mem_cache.storage.mooncake_store.mooncake_store  # noqa: E402, F401
