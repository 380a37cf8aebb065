"""The copy-only floor where there is no C compiler: rows moved by ``numpy.take``.

Each rank stores its rows straight to their places, and copies the rows that a combine reads into
a few rows of scratch. fp8 rows are cast beforehand, and go without their scales. Every row
is one ``memmove``. A reduction that keeps its sums in registers stores less than this copy does,
and may be faster.
"""

from __future__ import annotations

import numpy as np
import torch

from .slab import Bytes, Memory, blocks, output_rows
from .workload import Workload, quantise

# Tokens gathered at a time: the destination stays in the nearest caches.
_TOKENS_AT_ONCE = 4


class NumpyFloor:
    """One rank's copies."""

    kind = "numpy"

    def __init__(self, work: Workload, memory: Memory) -> None:
        self._source = _source_rows(work)
        self._positions = output_rows(work)
        capacity = work.num_ranks * work.num_tokens
        self._blocks = [(b.tokens, b.expert * capacity + b.first) for b in blocks(work)]
        self._slabs, self._turn = memory.slabs, 0
        width = 2 * work.hidden
        self._scratch = np.empty((_TOKENS_AT_ONCE * work.topk_idx.shape[1], width), np.uint8)
        self._out: Bytes = np.empty((work.num_tokens, width), dtype=np.uint8)
        for slab in self._slabs:  # memory that is not there costs nothing
            slab.outputs[self._positions.reshape(-1)] = 1

    def dispatch(self) -> None:
        """Stores T * K rows of a dispatch's size."""
        self._turn = (self._turn + 1) % len(self._slabs)
        recv = self._slabs[self._turn].recv
        for tokens, begin in self._blocks:
            target = recv[begin : begin + len(tokens)]
            np.take(self._source, tokens, axis=0, out=target, mode="clip")

    def combine(self) -> None:
        """Loads T * K output rows, and stores T."""
        outputs = self._slabs[self._turn].outputs
        for start in range(0, len(self._positions), _TOKENS_AT_ONCE):
            wanted = self._positions[start : start + _TOKENS_AT_ONCE].reshape(-1)
            scratch = self._scratch[: len(wanted)]
            np.take(outputs, wanted, axis=0, out=scratch, mode="clip")
            target = self._out[start : start + _TOKENS_AT_ONCE]
            np.copyto(target, scratch[: len(target)])


def _source_rows(work: Workload) -> Bytes:
    """uint8 [T, width of a row]: the rows as a dispatch stores them, without scales."""
    rows = quantise(work.x)[0] if work.fp8 else work.x
    source: Bytes = rows.view(torch.uint8).numpy()
    return source
