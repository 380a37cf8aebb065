"""Where the floor's rows lie: memory shared by all ranks, with a dispatch's placement.

As in Moewire each expert has R * M rows, the rows of one source follow one another, and slabs are
used in turn. So the caches see as many bytes as with Moewire.
"""

from __future__ import annotations

import mmap
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .workload import FP8_BLOCK, Workload

NUM_SLABS = 2
_PAGE = 4096
_MAX_RANKS = 64
# Words of the barrier: one cache line per pair of ranks.
_BARRIER_BYTES = _MAX_RANKS * _MAX_RANKS * 64

Bytes: TypeAlias = NDArray[np.uint8]
Positions: TypeAlias = NDArray[np.intp]


def shared_bytes(num_ranks: int, tokens: int, num_experts: int, hidden: int) -> int:
    """Address space for every slab; memory becomes resident as rows arrive."""
    rows = num_experts * num_ranks * tokens
    slab = 2 * _whole(rows * 2 * hidden) + _whole(rows * 4 * (hidden // FP8_BLOCK + 1))
    return _BARRIER_BYTES + NUM_SLABS * slab


def _whole(num_bytes: int) -> int:
    return -(-num_bytes // _PAGE) * _PAGE


class Slab(NamedTuple):
    """One set of rows, of all ranks."""

    recv: Bytes  # [E * R * M, bytes of a row without its scales]
    scales: NDArray[np.float32]  # [E, H/128, R * M]; empty for bf16
    outputs: Bytes  # [E * R * M, 2 * H]


class Memory:
    """The shared memory as arrays. ``file`` is its descriptor."""

    def __init__(self, work: Workload, file: int) -> None:
        size = shared_bytes(work.num_ranks, work.num_tokens, work.num_experts, work.hidden)
        self._bytes: Bytes = np.frombuffer(mmap.mmap(file, size), dtype=np.uint8)
        self._at = _BARRIER_BYTES
        self.barrier = self._bytes[:_BARRIER_BYTES]
        self.slabs = [self._slab(work) for _ in range(NUM_SLABS)]

    def _slab(self, work: Workload) -> Slab:
        columns, rows = work.num_ranks * work.num_tokens, work.num_experts
        groups = work.hidden // FP8_BLOCK if work.fp8 else 0
        width = work.hidden if work.fp8 else 2 * work.hidden
        recv = self._take(rows * columns * width).reshape(-1, width)
        scales = self._take(rows * groups * columns * 4).view(np.float32)
        outputs = self._take(rows * columns * 2 * work.hidden).reshape(-1, 2 * work.hidden)
        return Slab(recv, scales.reshape(rows, groups, columns), outputs)

    def _take(self, num_bytes: int) -> Bytes:
        begin, self._at = self._at, self._at + _whole(num_bytes)
        return self._bytes[begin : begin + num_bytes]


class Block(NamedTuple):
    """The rows that this rank sends to one expert."""

    expert: int
    first: int  # their first row within the expert
    tokens: Positions


def blocks(work: Workload) -> list[Block]:
    """In order of expert; sources lie in order of rank, tokens in their own order."""
    result = []
    for expert in range(work.num_experts):
        before = int((work.routing[: work.rank] == expert).sum())
        tokens = (work.topk_idx == expert).any(dim=1).nonzero().view(-1).numpy()
        if len(tokens):
            result.append(Block(expert, before, tokens))
    return result


def output_rows(work: Workload) -> Positions:
    """intp [T, K]: the row, counted over all experts, that holds each selection's output."""
    positions = np.empty(work.topk_idx.shape, dtype=np.intp)
    choice = work.topk_idx.numpy()
    for block in blocks(work):
        hits = np.nonzero(choice == block.expert)
        begin = block.expert * work.num_ranks * work.num_tokens + block.first
        positions[hits] = begin + np.arange(len(hits[0]))
    return positions
