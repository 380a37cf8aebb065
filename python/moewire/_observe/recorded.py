"""What the library recorded, as Python objects. Works on a fenced rank and after a defect."""

from __future__ import annotations

import ctypes
from ctypes import byref
from typing import Any

from .. import _abi as abi
from .._native.lib import read_json
from .._native.runtime import Runtime
from . import clocks


def paths(runtime: Runtime) -> list[dict[str, Any]]:
    """``mw_buffer_paths``."""
    runtime.refuse_closed()
    status, value = read_json(runtime.lib.buffer_paths, runtime.id)
    runtime.check(status)
    result: list[dict[str, Any]] = value
    return result


def stats(runtime: Runtime) -> dict[str, Any]:
    """``mw_buffer_stats``; docs/observability.md has the keys."""
    runtime.refuse_closed()
    status, value = read_json(runtime.lib.buffer_stats, runtime.id)
    runtime.check(status)
    result: dict[str, Any] = value
    return result


def clock(runtime: Runtime, rank: int, all_ranks: bool) -> clocks.Clock | None:
    """The clock of this rank's host, and what is known of other hosts' clocks."""
    remote = stats(runtime)["remote"]
    seen = [(link["rank"], link["clock_ahead_ns"]) for link in remote["links"]]
    local = {rank}
    if all_ranks:
        local = set(range(runtime.num_ranks)) - {remote_rank for remote_rank, _ in seen}
    return clocks.clock_of("self", remote["wall_clock_ns"], local, seen)


def records(runtime: Runtime, rank: int, last: int | None) -> list[abi.mw_record_t]:
    """The latest operations of a rank, the oldest first."""
    runtime.refuse_closed()
    capacity = min(last or abi.MW_MAX_RECORDS, abi.MW_MAX_RECORDS)
    found, count = (abi.mw_record_t * capacity)(), ctypes.c_uint32()
    found[0].size = abi.SIZE_OF[abi.mw_record_t]
    runtime.check(runtime.lib.buffer_trace(runtime.id, rank, found, capacity, byref(count)))
    return list(found[: count.value])
