"""The copy-only floor: the same rows between the same processes, and nothing else.

No protocol, no waiting, no arithmetic: each rank stores its rows into memory shared by all,
at the positions that a dispatch gives them, and copies the rows that a combine reads into a few
rows of scratch. Every row is one ``memmove`` of a whole row inside ``numpy.take``. A reduction
that keeps its sums in registers stores less than this copy does, and may be faster.
"""

from __future__ import annotations

import mmap
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from .workload import Workload, quantise

# Tokens gathered at a time: the destination stays in the nearest caches.
_TOKENS_AT_ONCE = 4

Rows: TypeAlias = NDArray[np.uint8]
Positions: TypeAlias = NDArray[np.intp]


def shared_bytes(num_ranks: int, tokens: int, num_experts: int, hidden: int) -> int:
    """Address space for dispatched rows and for expert outputs."""
    return 2 * num_experts * num_ranks * tokens * 2 * hidden


class Floor:
    """One rank's copies. ``file`` is the descriptor of memory that all ranks share."""

    def __init__(self, work: Workload, file: int) -> None:
        self._work = work
        self._rows_per_expert = work.num_ranks * work.num_tokens
        rows = work.num_experts * self._rows_per_expert
        size = shared_bytes(work.num_ranks, work.num_tokens, work.num_experts, work.hidden)
        shared = np.frombuffer(mmap.mmap(file, size), dtype=np.uint8)
        self._recv = shared[: rows * work.row_bytes].reshape(rows, work.row_bytes)
        outputs = shared[size // 2 :][: rows * 2 * work.hidden]
        self._outputs = outputs.reshape(rows, 2 * work.hidden)
        self._source = _source_rows(work)
        self._plan = self._dispatch_plan()
        self._positions = self._combine_positions()
        self._scratch = np.empty(
            (_TOKENS_AT_ONCE * work.topk_idx.shape[1], 2 * work.hidden), dtype=np.uint8
        )
        self._out: Rows = np.empty((work.num_tokens, 2 * work.hidden), dtype=np.uint8)
        self._outputs[self._positions.reshape(-1)] = 1  # memory that is not there costs nothing

    def _dispatch_plan(self) -> list[tuple[Positions, Rows]]:
        """For each expert: the token indices to send, and where the rows go."""
        plan = []
        for expert in range(self._work.num_experts):
            counts = [int((choice == expert).sum()) for choice in self._work.routing]
            begin = expert * self._rows_per_expert + sum(counts[: self._work.rank])
            tokens = (self._work.topk_idx == expert).any(dim=1).nonzero().view(-1).numpy()
            if len(tokens):
                plan.append((tokens, self._recv[begin : begin + len(tokens)]))
        return plan

    def _combine_positions(self) -> Positions:
        """intp [T, K]: the row that holds each selection's output."""
        positions = np.empty(self._work.topk_idx.shape, dtype=np.intp)
        choice = self._work.topk_idx.numpy()
        for expert in range(self._work.num_experts):
            before = self._work.routing[: self._work.rank]
            begin = expert * self._rows_per_expert + int((before == expert).sum())
            hits = np.nonzero(choice == expert)
            positions[hits] = begin + np.arange(len(hits[0]))
        return positions

    def dispatch(self) -> None:
        """Stores T * K rows of a dispatch's size."""
        for tokens, target in self._plan:
            np.take(self._source, tokens, axis=0, out=target, mode="clip")

    def combine(self) -> None:
        """Loads T * K output rows, and stores T."""
        for start in range(0, len(self._positions), _TOKENS_AT_ONCE):
            wanted = self._positions[start : start + _TOKENS_AT_ONCE].reshape(-1)
            scratch = self._scratch[: len(wanted)]
            np.take(self._outputs, wanted, axis=0, out=scratch, mode="clip")
            target = self._out[start : start + _TOKENS_AT_ONCE]
            np.copyto(target, scratch[: len(target)])


def _source_rows(work: Workload) -> Rows:
    """uint8 [T, row_bytes]: the rows as a dispatch stores them, cast beforehand."""
    if not work.fp8:
        rows: Rows = work.x.view(torch.uint8).numpy()
        return rows
    data, scales = quantise(work.x)
    parts = [data.view(torch.uint8), scales.contiguous().view(torch.uint8)]
    cast: Rows = torch.cat(parts, dim=1).numpy()
    return cast
