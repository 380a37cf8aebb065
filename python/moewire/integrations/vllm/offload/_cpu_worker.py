"""Copies of KV blocks between vLLM's cache and the tier in memory, both in this host's memory.

A copy is made when it is submitted: the cache is written by the thread that submits, so a copy
needs no order of its own, and it is finished before the blocks can be used again. vLLM's connector
ends the engine on a failed transfer; memory is always there, so there is none.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult


class _Side(NamedTuple):
    """Where the pages of one layer lie: page of block b at base + b * stride."""

    base: int
    stride: int


class _Layer(NamedTuple):
    cache: _Side
    tier: _Side  # stride from chunk to chunk
    page: int  # from block to block within a chunk
    length: int  # of what is copied of a page


class CPUWorker(OffloadingWorker):  # type: ignore[misc]
    """One per worker process; owns the region, in which each chunk has a row."""

    def __init__(self, kv_caches: Any, blocks_per_chunk: int, region: Any) -> None:
        self._region = region
        self._blocks_per_chunk = blocks_per_chunk
        self._tensors = [one.tensor for one in kv_caches.tensors]  # keeps the memory
        layers = [self._layer(one) for one in kv_caches.tensors]
        self._groups = [
            [layers[ref.tensor_idx]._replace(length=ref.page_size_bytes) for ref in refs]
            for refs in kv_caches.group_data_refs
        ]
        self._finished: list[Any] = []

    def _layer(self, one: Any) -> _Layer:
        page = one.page_size_bytes
        cache = one.tensor
        if cache.device.type != "cpu":
            raise RuntimeError(f"the KV cache is on {cache.device}, not on the CPU")
        view = self._region.create_next_worker_view(page * self._blocks_per_chunk)
        stride = cache.stride(0) * cache.element_size()
        in_cache = _Side(cache.data_ptr(), stride)
        return _Layer(in_cache, _Side(view.data_ptr(), view.stride(0)), page, page)

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any, **_: Any) -> bool:
        """From the cache to the tier."""
        started = time.perf_counter()
        total = 0
        for cache, tier, length in self._pages(src_spec, dst_spec.block_ids):
            ctypes.memmove(tier, cache, length)
            total += length
        self._done(job_id, total, started)
        return True

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any, **_: Any) -> bool:
        """From the tier to the cache. ``expedited``, of later versions, changes nothing."""
        started = time.perf_counter()
        total = 0
        for cache, tier, length in self._pages(dst_spec, src_spec.block_ids):
            ctypes.memmove(cache, tier, length)
            total += length
        self._done(job_id, total, started)
        return True

    def _pages(self, blocks: Any, chunks: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """Address in the cache, address in the tier, length: of each page of a transfer.

        The blocks of a group are consecutive ones of a request, the first of them perhaps in the
        middle of a chunk. The groups' chunks follow one another.
        """
        ids, at, chunk_at = blocks.block_ids.tolist(), 0, 0
        chunk_ids = [int(chunk) for chunk in chunks]
        for layers, size, first in zip(
            self._groups, blocks.group_sizes, blocks.block_indices, strict=True
        ):
            if not size:
                continue
            skipped = first % self._blocks_per_chunk
            for number, block in enumerate(ids[at : at + size], start=skipped):
                chunk = chunk_ids[chunk_at + number // self._blocks_per_chunk]
                inside = number % self._blocks_per_chunk
                for layer in layers:
                    cache = layer.cache.base + block * layer.cache.stride
                    tier = layer.tier.base + chunk * layer.tier.stride + inside * layer.page
                    yield cache, tier, layer.length
            at += size
            chunk_at += -(-(skipped + size) // self._blocks_per_chunk)
        if (at, chunk_at) != (len(ids), len(chunk_ids)):
            raise RuntimeError(f"{len(ids)} blocks for {len(chunk_ids)} chunks do not fit")

    def _done(self, job_id: int, total: int, started: float) -> None:
        took = time.perf_counter() - started
        self._finished.append(TransferResult(job_id, True, total, took))

    def get_finished(self) -> list[Any]:
        """Every transfer since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Nothing to wait for: a submitted transfer is finished."""

    def shutdown(self) -> None:
        """Gives the region back. Idempotent."""
        region, self._region = self._region, None
        self._groups, self._tensors = [], []
        if region is not None:
            region.cleanup()
