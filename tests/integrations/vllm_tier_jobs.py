"""The tier by itself, as vLLM's manager of tiers calls it. Jobs answer with plain values."""

from __future__ import annotations

import mmap
import time
from dataclasses import fields as fields_of
from dataclasses import is_dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import vllm_store_jobs

from moewire.integrations.vllm import offload
from moewire.integrations.vllm.offload._namespace import Identity, of_engine

ROW, NUM_ROWS = 4096, 8
COUNT = [
    "cache.blocks_per_chunk",
    "cache.tokens_per_hash",
    "canonical_layout",
    "groups.group_id",
    "groups.layer_names",
    "groups.tokens_per_block",
    "kv_cache_layout",
    "model.dtype",
    "parallel.dcp_size",
    "parallel.pcp_size",
    "parallel.pp_size",
    "parallel.rank",
    "parallel.tp_size",
    "parallel.world_size",
    "replicated_layout",
    "worker_kv_bytes_per_block",
]
# The name of the model counts as the tier has it, which may be told another.
DO_NOT_COUNT = [
    "enable_kv_cache_events",
    "engine_id",
    "extra_config",
    "model.name",
    "parallel.data_parallel_index",
    "parallel.data_parallel_rank_local",
    "parallel.data_parallel_size",
    "parallel.is_parallelism_agnostic",
]


def _config() -> Any:
    from vllm.v1.kv_offload import config as module

    return module.OffloadingConfig(
        groups=(module.OffloadingGroupConfig(16, ("a", "b"), 0),),
        worker_kv_bytes_per_block=1024,
        enable_kv_cache_events=True,
        extra_config={},
        engine_id="engine",
        model=module.OffloadingModelConfig("m", "bfloat16"),
        cache=module.OffloadingCacheConfig(16, 4),
        parallel=module.OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, False),
        kv_cache_layout="LBHNC",
    )


def fields(_rank: int, _size: int, _folder: Path) -> dict[str, list[str]]:
    """Which fields of vLLM's configuration are in the namespace: each is changed once."""
    first = _config()
    before = _namespace(first)
    found: dict[bool, list[str]] = {True: [], False: []}
    for path, changed in _changed(first):
        found[_namespace(changed) != before].append(path)
    return {"counts": sorted(found[True]), "does_not": sorted(found[False])}


def _namespace(config: Any) -> Any:
    return of_engine(config, ROW, Identity("m", "w", "machine", ""))


def _changed(value: Any) -> Any:
    """The path of each field, and the value with another one there."""
    for field in fields_of(value):
        old = getattr(value, field.name)
        one = old[0] if field.name == "groups" else old
        if not is_dataclass(one):
            yield field.name, replace(value, **{field.name: ("another", old)})
            continue
        for path, changed in _changed(one):
            new = (changed,) if field.name == "groups" else changed
            yield f"{field.name}.{path}", replace(value, **{field.name: new})


def refused(
    _rank: int, _size: int, _folder: Path, model: str, tier: dict[str, Any]
) -> tuple[str, list[str]]:
    """What vLLM says of a configuration, and what it leaves in /dev/shm."""
    before = _left()
    try:
        vllm_store_jobs.engine(model, tier)
    except Exception as error:
        return repr(error), sorted(_left() - before)
    return "taken", []


def _left() -> set[str]:
    return {str(one) for one in Path("/dev/shm").glob("vllm_offload_*")}


def contract(_rank: int, _size: int, _folder: Path, store: str) -> dict[str, Any]:
    """Answers of the tier, through vLLM's factory."""
    from vllm.v1.kv_offload.base import LookupResult
    from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

    assert offload.register() and offload.register()
    memory = mmap.mmap(-1, NUM_ROWS * ROW)
    rows = np.frombuffer(memory, np.int8).reshape(NUM_ROWS, ROW)
    view = memoryview(rows)
    entry = {
        "type": "moewire",
        "servers": [store],
        "client": "harness.fake_store:Client",
        "weights": "w",
        "enable_kv_events": True,
        "locality": "REMOTE",
    }
    tier = SecondaryTierFactory.create_secondary_tier(entry, view, _spec())
    answer: dict[str, Any] = {"class": type(tier).__name__, "before": tier.get_stats().is_empty()}
    request = SimpleNamespace(req_id="a")

    def lookup(key: bytes) -> Any:
        while (found := tier.lookup(key, request)) is LookupResult.RETRY:
            tier.on_schedule_end(None)
        return found.name

    keys = [b"one", b"two", b"three"]
    rows[:3] = [[1], [2], [3]]
    answer["first"] = tier.lookup(keys[0], request).name
    answer["empty"] = [lookup(key) for key in keys]
    tier.on_request_finished(request)
    tier.submit_store(_job(7, keys[:2], [0, 1]))
    tier.drain_jobs()
    answer["stored"] = [_plain(one) for one in tier.get_finished_jobs()]
    answer["found"] = [lookup(key) for key in keys]
    del tier._requests._client.blocks[b"two"]
    tier.submit_load(_job(8, keys, [5, 6, 7]), expedited=True)
    tier.drain_jobs()
    answer["loaded"] = [_plain(one) for one in tier.get_finished_jobs()]
    answer["rows"] = rows[5:, 0].tolist()
    answer["afterwards"] = [lookup(key) for key in keys]
    tier.touch(keys, request)
    answer["touched"] = _touched(tier._requests._client)
    answer["events"] = [_event(one) for one in tier.take_events()]
    answer["events_again"] = len(list(tier.take_events()))
    stats = tier.get_stats().reduce()
    answer["stats"] = stats
    answer["defined"] = sorted(tier.build_metric_definitions(entry))
    answer["stats_again"] = tier.get_stats().is_empty()
    tier.shutdown()
    tier.shutdown()
    view.release()
    del rows
    memory.close()  # raises, if the tier still holds some of it
    return answer


def _touched(client: Any) -> list[list[str]]:
    """By a thread, so in a while."""
    end = time.monotonic() + 10
    while not client.touched and time.monotonic() < end:
        time.sleep(0.01)
    return [[key.decode() for key in call] for call in client.touched]


def _spec() -> Any:
    events = SimpleNamespace(enable_kv_cache_events=True)
    return SimpleNamespace(config=_config(), kv_events_config=events)


def _job(number: int, keys: list[bytes], chunks: list[int]) -> Any:
    return SimpleNamespace(job_id=number, keys=tuple(keys), chunk_ids=np.array(chunks, np.int32))


def _plain(result: Any) -> list[Any]:
    keys = result.successful_keys
    names = None if keys is None else [key.decode() for key in keys]
    return [result.job_id, result.success, names, result.transfer_bytes]


def _event(event: Any) -> list[Any]:
    names = [key.decode() for key in event.keys]
    return [names, event.medium.name, event.removed, event.locality.name]
