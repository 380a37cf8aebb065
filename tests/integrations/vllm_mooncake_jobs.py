"""Lives of one engine of vLLM with its own connector for Mooncake's store, on the block store.

Jobs answer with plain values.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
import vllm_store_jobs as jobs


class _Event:
    """In the place of ``torch.cuda.Event``: the connector makes one on any device."""

    def record(self) -> None:
        """The CPU has done all that was asked of it."""

    synchronize = record


def life(_rank: int, _size: int, _folder: Path, model: str) -> dict[str, Any]:
    """An engine from its beginning to its end: each prompt by itself, then all is stored."""
    torch.cuda.Event = _Event
    connector = {
        "kv_connector": "MooncakeStoreConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
    }
    llm = jobs.engine(model, None, kv_transfer_config=connector)
    answers = [jobs.text(llm, ids) for ids in jobs.prompts()]
    store, counts = _stored()
    result = {
        "ids": [one["ids"] for one in answers],
        "cached": [one["cached"] for one in answers],
        "class": type(store).__module__,
        "counts": counts,
    }
    llm.llm_engine.engine_core.shutdown()
    return {**result, "health": store.health_check()}


def _stored() -> tuple[Any, dict[str, Any]]:
    """The worker's store and its counts, once what was to be stored is stored or has failed."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    worker = get_kv_transfer_group().connector_worker
    end = time.monotonic() + 60
    while worker.kv_send_thread.request_queue.unfinished_tasks:
        assert time.monotonic() < end, "the connector does not store"
        time.sleep(0.02)
    said = worker.store.moewire_stats()
    return worker.store, {**said["replies"], "hits": said["hits"], "bad_tags": said["bad_tags"]}
