"""One rank of the benchmark: check once, then measure everything in turns."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ..buffer import Buffer
from ..errors import MoewireError
from ..handle import Handle
from . import overhead, workload
from .floor import Floor
from .gloo import Gloo

# When each step began and ended, in seconds of the clock that all processes share.
Samples = dict[str, list[tuple[float, float]]]

# Ranks begin a step at a time that rank 0 names after a barrier: with more ranks than cores they
# leave the barrier far apart, and whoever runs alone for a while looks faster than a group can be.
_LEAD_SECONDS = 0.004


class Moewire:
    """Dispatch and combine of one workload; expert outputs are the rows received."""

    def __init__(self, work: workload.Workload, buffer: Buffer) -> None:
        self._work = work
        self._buffer = buffer
        shape = (work.num_local_experts, work.num_ranks * work.num_tokens, work.hidden)
        self._elsewhere = torch.empty(shape, dtype=torch.bfloat16)
        self._out = torch.empty_like(work.x)
        self._handle: Handle | None = None
        self._in_place = self._elsewhere
        self._received: Any = None

    def dispatch(self) -> None:
        """Blocking, bf16 or fp8, into the workspace."""
        work = self._work
        recv_x, recv_count, self._handle, _, _ = self._buffer.dispatch(
            work.x, work.topk_idx, None, work.num_tokens, work.num_experts, -1, use_fp8=work.fp8
        )
        self._received = recv_x, recv_count

    def compute(self) -> None:
        """The identity expert, into the combine buffer and into ordinary memory."""
        assert self._handle is not None
        recv_x, recv_count = self._received
        self._in_place = self._buffer.get_next_combine_buffer(self._handle)
        for expert, count in enumerate(recv_count.tolist()):
            if self._work.fp8:
                data, scales = recv_x
                rows = workload.dequantise(data[expert, :count], scales[expert, :count])
            else:
                rows = recv_x[expert, :count]
            self._in_place[expert, :count] = rows
            self._elsewhere[expert, :count] = rows

    def combine_zero_copy(self) -> torch.Tensor:
        """From the combine buffer."""
        return self._combine(self._in_place, True)

    def combine(self) -> torch.Tensor:
        """From ordinary memory: one more copy of the valid rows."""
        return self._combine(self._elsewhere, False)

    def _combine(self, x: torch.Tensor, zero_copy: bool) -> torch.Tensor:
        work = self._work
        assert self._handle is not None
        out, _, _ = self._buffer.combine(
            x,
            work.topk_idx,
            work.weights,
            None,
            -1,
            self._handle,
            zero_copy=zero_copy,
            out=self._out,
        )
        return out


def run(options: argparse.Namespace, rank: int, store: str, shared: str) -> dict[str, Any]:
    """Everything that one rank measures: times per step and iteration, counters, overheads."""
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // options.ranks))
    dist.init_process_group(
        "gloo", store=dist.FileStore(store, options.ranks), rank=rank, world_size=options.ranks
    )
    group = dist.group.WORLD
    assert group is not None
    work = workload.make(options, rank)
    file = os.open(shared, os.O_RDWR)
    hint = Buffer.get_ep_buffer_size_hint(
        options.tokens, options.hidden, options.ranks, options.experts
    )
    try:
        with Buffer(group, hint) as buffer:
            moewire, floor = Moewire(work, buffer), Floor(work, file)
            gloo = Gloo(work, group) if options.peers == "gloo" else None
            _verify(work, moewire, gloo)
            samples = _measure(options, group, moewire, floor, gloo)
            counters = buffer.counters()
        costs = overhead.measure() if rank == 0 else None
        dist.barrier(group)
    finally:
        os.close(file)
        dist.destroy_process_group()
    rows, row_bytes = work.num_rows, work.row_bytes
    return {
        "samples": samples,
        "counters": counters,
        "overhead_us": costs,
        "dispatch_bytes": rows * row_bytes,
        "combine_bytes": rows * 2 * work.hidden,
    }


def _verify(work: workload.Workload, moewire: Moewire, gloo: Gloo | None) -> None:
    """Both combines, and the peer's, must have the bits of a plain sum over the own tokens."""
    moewire.dispatch()
    moewire.compute()
    results = {
        "combine, zero copy": moewire.combine_zero_copy().clone(),
        "combine": moewire.combine().clone(),
    }
    if gloo is not None:
        gloo.dispatch()
        gloo.compute()
        results["gloo"] = gloo.combine()
    values = workload.dequantise(*workload.quantise(work.x)) if work.fp8 else work.x
    total = torch.zeros(work.x.shape)
    for k in range(work.weights.shape[1]):
        total += work.weights[:, k : k + 1] * values.float()
    for name, result in results.items():
        if not torch.equal(result, total.bfloat16()):
            raise MoewireError(f"rank {work.rank}: wrong result of {name}; nothing was measured")


def _measure(
    options: argparse.Namespace,
    group: dist.ProcessGroup,
    moewire: Moewire,
    floor: Floor,
    gloo: Gloo | None,
) -> Samples:
    steps: list[tuple[str, Callable[[], object]]] = [
        ("floor_dispatch", floor.dispatch),
        ("moewire_dispatch", moewire.dispatch),
        ("", moewire.compute),
        ("floor_combine", floor.combine),
        ("moewire_combine_zero_copy", moewire.combine_zero_copy),
        ("moewire_combine", moewire.combine),
    ]
    if gloo is not None:
        steps += [
            ("gloo_dispatch", gloo.dispatch),
            ("", gloo.compute),
            ("gloo_combine", gloo.combine),
        ]
    samples: Samples = {name: [] for name, _ in steps if name}
    for iteration in range(options.warmup + options.iters):
        for name, step in steps:
            if name:
                _start_together(group)
            start = time.perf_counter()
            step()
            if name and iteration >= options.warmup:
                samples[name].append((start, time.perf_counter()))
    return samples


def _start_together(group: dist.ProcessGroup) -> None:
    dist.barrier(group)
    begin = torch.tensor(time.perf_counter() + _LEAD_SECONDS, dtype=torch.float64)
    dist.broadcast(begin, 0, group)
    time.sleep(max(0.0, float(begin) - time.perf_counter()))
