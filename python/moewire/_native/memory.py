"""Tensors over the library's memory, without copying and without dangling.

Every tensor made here holds an owner that keeps its mapping in place. A tensor that outlives
its handle or its buffer therefore holds stale numbers, never unmapped memory.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections import OrderedDict
from typing import Any

import torch

from .. import _abi as abi
from . import leaked
from .lib import Library

# How many objects over one mapping stay cached: two per slot and shape.
MAX_KEPT = 64


class Owner:
    """Keeps the memory of a result; releases it when the last tensor over it is gone.

    If a device cannot free it then, ``leaked`` tries again.
    """

    def __init__(self, library: Library, memory_id: int) -> None:
        self._library: Library | None = None
        self._memory = abi.mw_memory_t(memory_id)
        library.check(library.memory_retain(self._memory))
        self._library = library

    def __del__(self) -> None:
        library = self._library
        if library is not None:
            leaked.release(library, self._memory)


class Mapping:
    """One mapping of a buffer and the tensors made over it. Any thread may use it."""

    def __init__(self, library: Library, result: abi.mw_dispatch_result_t) -> None:
        self._address = int(result.memory_address)
        self._num_bytes = int(result.memory_bytes)
        owner = Owner(library, int(result.memory.id))
        self._bytes = (ctypes.c_ubyte * self._num_bytes).from_address(self._address)
        self._bytes.owner = owner  # type: ignore[attr-defined]
        self._kept: OrderedDict[object, Any] = OrderedDict()
        self._lock = threading.Lock()
        self.find = self._kept.get  # what was kept under a key, or None

    def keep(self, key: object, value: Any) -> None:
        """Keeps it for ``find``, until there are too many; a value made twice is kept once."""
        with self._lock:
            self._kept[key] = value
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)

    def view(self, address: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A contiguous tensor of ``shape`` and ``dtype`` that begins at ``address``."""
        count = math.prod(shape)
        offset = address - self._address
        if offset < 0 or offset + count * dtype.itemsize > self._num_bytes:
            raise AssertionError(f"moewire: {shape} {dtype} at {offset} leaves its mapping")
        if count == 0:
            return torch.empty(shape, dtype=dtype, device="cpu")
        flat = torch.frombuffer(self._bytes, dtype=dtype, count=count, offset=offset)
        return flat.view(shape)


class MappingCache:
    """The mappings that a buffer used last; older ones live as long as their tensors."""

    def __init__(self, library: Library, max_mappings: int) -> None:
        self._library = library
        self._max_mappings = max_mappings
        self._mappings: OrderedDict[int, Mapping] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, result: abi.mw_dispatch_result_t) -> Mapping:
        """The mapping that a dispatch's result lies in."""
        memory_id: int = result.memory.id
        mapping = self._mappings.get(memory_id)
        return self._add(memory_id, result) if mapping is None else mapping

    def _add(self, memory_id: int, result: abi.mw_dispatch_result_t) -> Mapping:
        with self._lock:
            mapping = self._mappings.get(memory_id)
            if mapping is None:
                mapping = Mapping(self._library, result)
                self._mappings[memory_id] = mapping
                while len(self._mappings) > self._max_mappings:
                    self._mappings.popitem(last=False)
            return mapping

    def clear(self) -> None:
        """Forgets every mapping; tensors that are still held keep theirs."""
        with self._lock:
            self._mappings.clear()
