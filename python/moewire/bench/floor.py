"""The copy-only floor in C: the same bytes between the same processes, and nothing else.

Dispatch: each rank copies each of its rows to its final place in the memory of the expert's
rank; with fp8 it casts each token once, then copies the rows, and their scales into columns.
Combine: each rank sums its rows, with their weights, straight from where the experts left them.
Beside it one plain ``memcpy`` of a dispatch's bytes, and an empty barrier of all ranks.
"""

from __future__ import annotations

import ctypes
from ctypes import Structure, c_double, c_int64, c_uint64, c_void_p
from typing import Any, ClassVar

import numpy as np
import torch

from . import compiler
from .slab import Bytes, Memory, Slab, blocks, output_rows
from .timed import Timed
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


class _State(Structure):
    _fields_: ClassVar[list[tuple[str, Any]]] = [
        *((name, c_int64) for name in ("num_tokens", "hidden", "num_topk", "stride")),
        *((name, c_int64) for name in ("fp8", "num_blocks", "num_slabs", "turn")),
        *((name, c_void_p) for name in ("x", "weights", "q", "scales", "out")),
        ("blocks", c_void_p),
        ("outputs", c_void_p),
    ]


_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "floor_memcpy": (None, [c_void_p, c_void_p, c_int64]),
    "floor_wait_until": (None, [c_int64, c_int64]),
    "floor_barriers": (c_double, [c_void_p, c_int64, c_int64, c_uint64, c_int64, c_int64]),
}


def load() -> ctypes.CDLL:
    """The library, compiled at its first use; raises ``CompileError``."""
    path = compiler.library(compiler.SOURCES / "floor.c")
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class Floor:
    """One rank's copies, and the numbers to compare them with."""

    kind = "c"

    def __init__(
        self, work: Workload, memory: Memory, library: ctypes.CDLL, spin: float = 0.0
    ) -> None:
        self._work, self._memory, self._library = work, memory, library
        self._blocks = blocks(work)
        self._round = 0
        groups = work.hidden // FP8_BLOCK
        self._q = torch.zeros((work.num_tokens, work.hidden), dtype=torch.uint8)
        self._scales = torch.zeros((work.num_tokens, groups), dtype=torch.float32)
        self.out = torch.zeros((work.num_tokens, work.hidden), dtype=torch.bfloat16)
        self._copied: Bytes = np.ones(work.num_rows * work.row_bytes, dtype=np.uint8)
        self._copy = np.zeros_like(self._copied)
        for slab in memory.slabs:  # memory that is not there costs nothing
            # bf16 0.75: products with tiny numbers would be slow ones.
            slab.outputs[output_rows(work).reshape(-1)] = 0x3F
        self._state = self._new_state()
        self.timed = Timed(library, "floor", self._state, spin)

    def _new_state(self) -> _State:
        work, slabs = self._work, self._memory.slabs
        self._tables = [self._table(slab) for slab in slabs]
        self._rows = [self._addresses(slab) for slab in slabs]
        tables = [ctypes.addressof(table) for table in self._tables]
        self._pointers = (
            (c_void_p * len(slabs))(*tables),
            (c_void_p * len(slabs))(*(rows.ctypes.data for rows in self._rows)),
        )
        return _State(
            num_tokens=work.num_tokens,
            hidden=work.hidden,
            num_topk=work.topk_idx.shape[1],
            stride=work.num_ranks * work.num_tokens,
            fp8=work.fp8,
            num_blocks=len(self._blocks),
            num_slabs=len(slabs),
            x=work.x.data_ptr(),
            weights=work.weights.data_ptr(),
            q=self._q.data_ptr(),
            scales=self._scales.data_ptr(),
            out=self.out.data_ptr(),
            blocks=ctypes.addressof(self._pointers[0]),
            outputs=ctypes.addressof(self._pointers[1]),
        )

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
        self.timed.dispatch()

    def combine(self) -> None:
        """Loads T * K output rows, and stores T."""
        self.timed.combine()

    @property
    def slab(self) -> Slab:
        """What the last dispatch wrote to."""
        return self._memory.slabs[int(self._state.turn)]

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
