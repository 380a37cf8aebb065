"""What two engines must have in common to read one another's KV blocks.

A block is bytes as one engine's attention lays them out, of one model's numbers. A store shows a
block only within the namespace in which it was put, and a namespace is all of these fields.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from ....store import Namespace


class Identity(NamedTuple):
    """What vLLM's ``OffloadingConfig`` does not have."""

    model: str
    weights: str
    machine: str
    salt: str


def of_engine(config: Any, row_bytes: int, identity: Identity) -> Namespace:
    """Of vLLM's ``OffloadingConfig``, and the bytes of one block.

    ``parallel`` tells ranks apart: a block has the pages of all ranks of an engine, one behind the
    other, so that the ranks agree about each hit. Data-parallel replicas compute the same blocks,
    and share them.
    """
    return Namespace(
        model=identity.model,
        weights=identity.weights,
        dtype=str(config.model.dtype),
        layout=_text({**_layout(config, row_bytes), "machine": identity.machine}),
        chunk=_text(_chunk(config)),
        parallel=_text(_parallel(config)),
        salt=identity.salt,
    )


def _layout(config: Any, row_bytes: int) -> dict[str, Any]:
    groups = [[group.group_id, list(group.layer_names)] for group in config.groups]
    return {
        "kv_cache_layout": config.kv_cache_layout,
        "canonical": config.canonical_layout,
        "replicated": config.replicated_layout,
        "bytes_per_block": config.worker_kv_bytes_per_block,
        "row_bytes": row_bytes,
        "groups": groups,
    }


def _chunk(config: Any) -> dict[str, Any]:
    return {
        "tokens_per_hash": config.cache.tokens_per_hash,
        "blocks_per_chunk": config.cache.blocks_per_chunk,
        "tokens_per_block": [group.tokens_per_block for group in config.groups],
    }


def _parallel(config: Any) -> dict[str, int]:
    parallel = config.parallel
    return {
        "rank": parallel.rank,
        "world": parallel.world_size,
        "tp": parallel.tp_size,
        "pp": parallel.pp_size,
        "pcp": parallel.pcp_size,
        "dcp": parallel.dcp_size,
    }


def _text(fields: dict[str, Any]) -> str:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))
