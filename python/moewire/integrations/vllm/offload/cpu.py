"""vLLM's offloading on its CPU backend, which its own specs refuse.

In ``kv_connector_extra_config``: ``"spec_name": "MoewireCPUOffloadingSpec"``,
``"spec_module_path": "moewire.integrations.vllm"``. Everything else is as for vLLM's
``TieringOffloadingSpec``. Written against vLLM 0.32.0.
"""

from __future__ import annotations

from typing import Any

from vllm.platforms import current_platform
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from ....errors import InvalidArgument
from . import TIER, _client, _options
from ._cpu_worker import CPUWorker


class MoewireCPUOffloadingSpec(TieringOffloadingSpec):  # type: ignore[misc]
    """``TieringOffloadingSpec``, on vLLM's CPU backend as well."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._on_cpu: CPUWorker | None = None
        self._check_tiers()
        if current_platform.is_cpu():
            self._check(config)

    def _check_tiers(self) -> None:
        """Before a worker makes memory in /dev/shm, which stays there if vLLM cannot start."""
        for entry in self.secondary_tier_configs:
            if entry.get("type") == TIER:
                _client.check(_options.of_entry(entry).settings)

    def _check(self, config: Any) -> None:
        if config.canonical_layout:
            raise InvalidArgument("canonical_layout: true given; on the CPU allowed: false")
        if self.kv_bytes_per_chunk and not self.num_chunks:
            given = self.extra_config["cpu_bytes_to_use"]
            least = self.kv_bytes_per_chunk
            raise InvalidArgument(f"cpu_bytes_to_use: {given} given; one chunk takes {least}")

    def get_worker(self, kv_caches: Any) -> Any:
        """The worker that copies between vLLM's KV cache and the tier in memory."""
        if not current_platform.is_cpu():
            return super().get_worker(kv_caches)
        if self._on_cpu is None:
            self._on_cpu = self._cpu_worker(kv_caches)
        return self._on_cpu

    def _cpu_worker(self, kv_caches: Any) -> CPUWorker:
        region = SharedOffloadRegion(
            engine_id=self.config.engine_id,
            num_chunks=self.num_chunks,
            rank=0 if self.replicated_layout else self.config.parallel.rank,
            kv_bytes_per_chunk=self.kv_bytes_per_chunk,
            cpu_page_size=self.cpu_page_size_per_worker,
        )
        try:
            return CPUWorker(kv_caches, self.blocks_per_chunk, region)
        except BaseException:
            region.cleanup()
            raise
