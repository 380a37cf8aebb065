"""SGLang's back-end for Mooncake's store with its pools of pages. Jobs answer with plain values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

PAGE, PAGES, LAYERS, HEADS, WIDTH = 16, 8, 3, 2, 32
TYPE = torch.bfloat16
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
        is_mla_model=_latent(layout),
        enable_storage_metrics=False,
        is_page_first_layout="page_first" in layout,
        model_name="m",
        extra_config={"master_server_address": address, "protocol": "tcp", "tenant_id": layout},
    )
    backend = StorageBackendFactory.create_backend("mooncake", config, pool)
    backend.register_mem_pool_host(pool)
    return pool, backend


def _pool(layout: str) -> Any:
    """Of keys and values by head, or of latents where the layout says so."""
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
    from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
    from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost

    tokens = PAGE * 2
    given = {"pin_memory": False, "device": "cpu", "device_capacity_tokens": tokens}
    given |= {"start_layer": 0, "end_layer": LAYERS - 1, "host_token_capacity": PAGE * PAGES}
    with host_memory_budget_scope(1 << 30):  # else it leaves 10 GB to the system
        if _latent(layout):
            of_device = MLATokenToKVPool(tokens, PAGE, TYPE, WIDTH, 16, LAYERS, "cpu", False)
            info, where = of_device._mla_buffer_info(), layout.removeprefix("mla ")
            return MLATokenToKVPoolHost(info, 1.0, 0, PAGE, where, target_layer_num=LAYERS, **given)
        of_device = MHATokenToKVPool(tokens, PAGE, TYPE, HEADS, WIDTH, LAYERS, "cpu", False)
        return MHATokenToKVPoolHost(of_device._mha_buffer_info(), 1.0, 0, PAGE, layout, **given)


def _latent(layout: str) -> bool:
    return layout.startswith("mla ")


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
