"""The copy-only floor in C: the same bytes between the same processes, and nothing else.

Dispatch: each rank copies each of its rows to its final place in the memory of the expert's
rank; with fp8 it casts each token once, then copies the rows, and their scales into columns.
Combine: each rank sums its rows, with their weights, straight from where the experts left them.
Beside it one plain ``memcpy`` of a dispatch's bytes, and an empty barrier of all ranks.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_double, c_int64, c_uint64, c_void_p
from typing import Any, ClassVar

import numpy as np
import torch

from . import compiler
from .slab import Bytes, Memory, Slab, blocks, output_rows
from .workload import FP8_BLOCK, Workload

_BARRIER_ROUNDS = 32
_BARRIER_LIMIT_NS = 30_000_000_000


class _Block(Structure):
    _fields_: ClassVar[list[tuple[str, Any]]] = [
        ("tokens", c_void_p),
        ("count", c_int64),
        ("rows", c_void_p),
        ("scales", c_void_p),
    ]


_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "floor_dispatch": (None, [c_void_p, c_int64, c_void_p, c_int64]),
    "floor_dispatch_fp8": (
        None,
        [c_void_p, c_int64, c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_int64],
    ),
    "floor_combine": (None, [c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_int64]),
    "floor_memcpy": (None, [c_void_p, c_void_p, c_int64]),
    "floor_wait_until": (None, [c_int64, c_int64]),
    "floor_barriers": (c_double, [c_void_p, c_int64, c_int64, c_uint64, c_int64, c_int64]),
    "floor_time_calls": (
        c_double,
        [c_void_p, c_void_p, c_uint64, c_void_p, POINTER(c_uint64), c_int64],
    ),
}


def load() -> ctypes.CDLL:
    """The library, compiled at its first use; raises ``CompileError``."""
    path = compiler.build("floor", compiler.system_compiler(), ["-shared", "-fPIC"])
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class Floor:
    """One rank's copies, and the numbers to judge them by."""

    kind = "c"

    def __init__(self, work: Workload, memory: Memory, library: ctypes.CDLL) -> None:
        self._work, self._memory, self._library = work, memory, library
        self._blocks = blocks(work)
        self._tables = [self._table(slab) for slab in memory.slabs]
        self._rows = [self._addresses(slab) for slab in memory.slabs]
        self._turn, self._round = 0, 0
        groups = work.hidden // FP8_BLOCK
        self._q = torch.zeros((work.num_tokens, work.hidden), dtype=torch.uint8)
        self._scales = torch.zeros((work.num_tokens, groups), dtype=torch.float32)
        self.out = torch.zeros((work.num_tokens, work.hidden), dtype=torch.bfloat16)
        self._copied: Bytes = np.ones(work.num_rows * work.row_bytes, dtype=np.uint8)
        self._copy = np.zeros_like(self._copied)
        for slab in memory.slabs:  # memory that is not there costs nothing
            # bf16 0.75: products with tiny numbers would be slow ones.
            slab.outputs[output_rows(work).reshape(-1)] = 0x3F

    def _table(self, slab: Slab) -> Any:
        capacity = self._work.num_ranks * self._work.num_tokens
        table = (_Block * max(1, len(self._blocks)))()
        for entry, block in zip(table, self._blocks):  # noqa: B905, an empty table has one
            entry.tokens = block.tokens.ctypes.data
            entry.count = len(block.tokens)
            entry.rows = slab.recv[block.expert * capacity + block.first :].ctypes.data
            if self._work.fp8:
                entry.scales = slab.scales[block.expert, :, block.first :].ctypes.data
        return table

    def _addresses(self, slab: Slab) -> Any:
        """uint64 [T * K]: where the outputs of this rank's selections lie."""
        first, stride = slab.outputs.ctypes.data, slab.outputs.shape[1]
        return (first + output_rows(self._work).reshape(-1) * stride).astype(np.uint64)

    def dispatch(self) -> None:
        """Stores T * K rows."""
        work = self._work
        self._turn = (self._turn + 1) % len(self._tables)
        table, count = self._tables[self._turn], len(self._blocks)
        if not work.fp8:
            self._library.floor_dispatch(table, count, work.x.data_ptr(), 2 * work.hidden)
            return
        sizes = (work.num_tokens, work.hidden, work.num_ranks * work.num_tokens)
        targets = (self._q.data_ptr(), self._scales.data_ptr())
        self._library.floor_dispatch_fp8(table, count, work.x.data_ptr(), *targets, *sizes)

    def combine(self) -> None:
        """Loads T * K output rows, and stores T."""
        work = self._work
        self._library.floor_combine(
            self.out.data_ptr(),
            self._rows[self._turn].ctypes.data,
            work.weights.data_ptr(),
            work.num_tokens,
            work.topk_idx.shape[1],
            work.hidden,
        )

    @property
    def slab(self) -> Slab:
        """What the last dispatch wrote to."""
        return self._memory.slabs[self._turn]

    def memcpy(self) -> None:
        """As many bytes as a dispatch stores, in one piece of private memory."""
        size = len(self._copied)
        self._library.floor_memcpy(self._copy.ctypes.data, self._copied.ctypes.data, size)

    def barrier_seconds(self) -> float:
        """What an empty barrier takes, on average over several in a row; -1: a rank is gone."""
        first, self._round = self._round + 1, self._round + _BARRIER_ROUNDS + 1
        address, work = self._memory.barrier.ctypes.data, self._work
        nanoseconds: float = self._library.floor_barriers(
            address, work.rank, work.num_ranks, first, _BARRIER_ROUNDS, _BARRIER_LIMIT_NS
        )
        return nanoseconds * 1e-9 if nanoseconds >= 0 else -1.0
