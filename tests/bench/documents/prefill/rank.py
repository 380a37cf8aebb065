"""One rank of a prefill: compares all sides, then times them in turn."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import moewire
from moewire.errors import MoewireError

from .shape import Shape
from .sides import TIMEOUT_US, Floor, Gloo, Inputs, Ours

_Samples = dict[str, list[float]]


def measure(
    shape: Shape, repeat: int, held: int, rank: int, folder: str, key: str
) -> dict[str, Any]:
    """What one process found: seconds of every turn, bytes, memory. ``key``: of the ranks."""
    torch.set_num_threads(1)
    store = dist.FileStore(os.path.join(folder, "gloo"), shape.ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=shape.ranks)
    try:
        given = Inputs(shape, rank)
        with _buffer(folder, "one-host", shape, rank) as buffer:
            ours = Ours(buffer, shape, given)
            gloo = Gloo(shape, given, ours)
            _compare(ours, gloo)
            samples = _turns(
                ours, {"moewire": ours, "gloo": gloo, "floor": Floor(ours, given)}, repeat
            )
            memory = _memory(ours, held)
            dist.barrier()
        os.environ["MOEWIRE_KEY"] = key
        between = _between_hosts(shape, given, rank, folder)
    finally:
        dist.destroy_process_group()
    return {"samples": samples, "num_rows": ours.routing.num_rows, **memory, **between}


def _buffer(folder: str, name: str, shape: Shape, rank: int) -> moewire.Buffer:
    store = dist.FileStore(os.path.join(folder, name), shape.ranks)
    return moewire.Buffer.from_store(store, rank, shape.ranks, connect_timeout_us=TIMEOUT_US)


def _compare(ours: Ours, gloo: Gloo) -> None:
    """Raises MoewireError where results differ."""
    for side in (ours, gloo):
        side.scatter()
        side.gather()
    for name in ("rows", "scales", "out"):
        mine, theirs = getattr(ours, name), getattr(gloo, name)
        if (mine is None) != (theirs is None) or (mine is not None and not mine.equal(theirs)):
            raise MoewireError(f"{name} of Moewire and gloo differ")


def _turns(ours: Ours, sides: dict[str, Any], repeat: int) -> _Samples:
    todo: dict[str, Callable[[], None]] = {"routing moewire": ours.make}
    for use in ("scatter", "gather"):
        todo |= {f"{use} {name}": getattr(side, use) for name, side in sides.items()}
    samples: _Samples = {name: [] for name in todo}
    for number in range(-1, repeat):  # the first turn is not counted
        # There and back, so that none always comes behind the same one.
        for name in todo if number % 2 == 0 else reversed(todo):
            dist.barrier()
            begin = time.perf_counter()
            todo[name]()
            if number >= 0:
                samples[name].append(time.perf_counter() - begin)
    return samples


def _memory(ours: Ours, held: int) -> dict[str, Any]:
    """What a routing takes, by its own count and by the process's memory."""
    if held == 0:
        return {"routing_nbytes": ours.routing.nbytes}
    ours.make()
    before, kept = _resident(), []
    for _ in range(held):
        ours.make()
        kept.append(ours.routing)
    return {
        "routing_nbytes": ours.routing.nbytes,
        "held": held,
        "resident_per_routing": (_resident() - before) / held,
    }


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def _between_hosts(shape: Shape, given: Inputs, rank: int, folder: str) -> dict[str, float]:
    """Bytes that leave this rank for each of its tokens, if every rank is a host of its own."""
    os.environ["MOEWIRE_HOST"], os.environ["MOEWIRE_LISTEN"] = f"host-{rank}", "127.0.0.1"
    with _buffer(folder, "hosts", shape, rank) as buffer:
        ours, found = Ours(buffer, shape, given), {}
        for use in ("scatter", "gather"):
            before = _sent(buffer)
            getattr(ours, use)()
            dist.barrier()
            found[f"{use}_bytes_per_token"] = (_sent(buffer) - before) / shape.tokens
        dist.barrier()
    return found


def _sent(buffer: moewire.Buffer) -> int:
    return sum(link["num_bytes_sent"] for link in buffer.stats()["remote"]["links"])


def summary(shape: Shape, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """One shape: a turn lasts as long as its slowest rank's; ratios are of medians."""
    steps: dict[str, Any] = {}
    for name in ranks[0]["samples"]:
        turns = [max(turn) for turn in zip(*(rank["samples"][name] for rank in ranks), strict=True)]
        steps[name] = {"median_us": statistics.median(turns) * 1e6, "min_us": min(turns) * 1e6}
    for use in ("scatter", "gather"):
        floor = steps[f"{use} floor"]
        for name in ("moewire", "gloo"):
            step = steps[f"{use} {name}"]
            step["times_floor"] = step["median_us"] / floor["median_us"]
            step["min_times_floor"] = step["min_us"] / floor["min_us"]
    names = [name for name in ranks[0] if name != "samples"]
    means = {name: statistics.fmean(rank[name] for rank in ranks) for name in names}
    return {"shape": shape.name, **shape._asdict(), "steps": steps, **means}
