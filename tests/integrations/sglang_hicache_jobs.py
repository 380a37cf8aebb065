"""SGLang's back-end for Mooncake's store with its pools of pages. Jobs answer with plain values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

PAGE, PAGES, LAYERS, HEADS, WIDTH = 16, 8, 3, 2, 32
KEYS = [f"page {n}" for n in range(4)]


def store(_rank: int, _size: int, _folder: Path, address: str, layout: str) -> dict[str, Any]:
    """A process that has pages, and stores them."""
    pool, backend = _backend(address, layout)
    _fill(pool)
    before = backend.batch_exists(KEYS)
    said = backend.batch_set_v1(KEYS, _indices(0, 1, 2, 3))
    again = backend.batch_set_v1(KEYS, _indices(4, 5, 6, 7))  # other bytes, which are not taken
    return {"before": before, "set": said, "again": again, "zero_copy": _zero_copy(pool)}


def load(_rank: int, _size: int, _folder: Path, address: str, layout: str) -> dict[str, Any]:
    """The next one, with the same model, loads them to other places."""
    pool, backend = _backend(address, layout)
    _fill(pool)
    want = [_bytes(pool, page) for page in range(4)]
    pool.kv_buffer.zero_()
    found = backend.batch_exists([*KEYS, "none"])
    got = backend.batch_get_v1([KEYS[0], KEYS[3], "none"], _indices(6, 5, 2))
    exact = [_bytes(pool, 6) == want[0], _bytes(pool, 5) == want[3]]
    zeros = all(_bytes(pool, page) == bytes(len(want[0])) for page in (0, 1, 2, 3, 4, 7))
    backend.clear()
    left = backend.batch_exists(KEYS)
    answer = {"found": found, "got": got, "exact": exact, "elsewhere": zeros, "left": left}
    return {**answer, "class": type(backend.store).__module__}


def _backend(address: str, layout: str) -> tuple[Any, Any]:
    """The pool of the host's pages and the back-end, made by SGLang's factory."""
    import moewire.compat.mooncake_store

    moewire.compat.mooncake_store.install()
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
    from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

    pool = _pool(layout)
    config = HiCacheStorageConfig(
        tp_rank=0,
        tp_size=1,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=False,
        enable_storage_metrics=False,
        is_page_first_layout=True,
        model_name="m",
        extra_config={"master_server_address": address, "protocol": "tcp", "tenant_id": layout},
    )
    backend = StorageBackendFactory.create_backend("mooncake", config, pool)
    backend.register_mem_pool_host(pool)
    return pool, backend


def _pool(layout: str) -> Any:
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
    from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

    of_device = MHATokenToKVPool(
        PAGE * 2, PAGE, torch.bfloat16, HEADS, WIDTH, LAYERS, "cpu", enable_memory_saver=False
    )
    with host_memory_budget_scope(1 << 30):  # else it leaves 10 GB to the system
        return MHATokenToKVPoolHost(
            of_device._mha_buffer_info(),
            1.0,
            0,
            PAGE,
            layout,
            pin_memory=False,
            device="cpu",
            device_capacity_tokens=PAGE * 2,
            start_layer=0,
            end_layer=LAYERS - 1,
            host_token_capacity=PAGE * PAGES,
        )


def _fill(pool: Any) -> None:
    generator = torch.Generator().manual_seed(3)
    pool.kv_buffer.copy_(torch.randn(pool.kv_buffer.shape, generator=generator))


def _indices(*pages: int) -> torch.Tensor:
    return torch.cat([torch.arange(page * PAGE, (page + 1) * PAGE) for page in pages])


def _bytes(pool: Any, page: int) -> bytes:
    """Of a page, by SGLang's own way to copy it."""
    return bytes(pool.get_data_page(page * PAGE, flat=True).contiguous().view(torch.uint8).tolist())


def _zero_copy(pool: Any) -> list[int]:
    return [len(part) for part in pool.get_page_buffer_meta(_indices(0, 1))]
