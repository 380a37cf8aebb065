"""What every launch of vLLM has imported already. No plug-in has run yet."""

from __future__ import annotations

import os

os.environ.update(
    HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
    DO_NOT_TRACK="1",
    VLLM_HOST_IP="127.0.0.1",
    GLOO_SOCKET_IFNAME="lo",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",  # the engine runs in the rank's own process
    VLLM_LOGGING_LEVEL="WARNING",
)

import vllm.model_executor.models.qwen3_moe
import vllm.v1.engine.core
import vllm.v1.worker.cpu_worker  # noqa: F401
from vllm import LLM  # noqa: F401
