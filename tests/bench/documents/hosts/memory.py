"""The bytes that are written from one host to the other, the same for every way to do it."""

from __future__ import annotations

import ctypes
import mmap
import os

import numpy as np

from .cells import Cell


class Memory:
    """Places for the messages in flight; another process of the host may map them, too."""

    def __init__(self, num_bytes: int, seed: int) -> None:
        self.num_bytes = num_bytes
        self._file = os.memfd_create("moewire-bench-hosts")
        os.ftruncate(self._file, num_bytes)
        self._map = mmap.mmap(self._file, num_bytes)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.bytes = np.frombuffer(self._map, dtype=np.uint8)
        self._pattern = np.random.default_rng(seed).integers(0, 256, num_bytes, dtype=np.uint8)

    @property
    def path(self) -> str:
        """The file, for other processes."""
        return f"/proc/{os.getpid()}/fd/{self._file}"

    def fill(self) -> None:
        """With what the writing host writes."""
        self.bytes[:] = self._pattern

    def clear(self) -> None:
        """To zeros."""
        self.bytes[:] = 0

    def has(self, cell: Cell) -> bool:
        """Whether everything of a burst lies where it belongs, and nothing else was written."""
        end = min(cell.num_messages, cell.depth) * cell.message_bytes
        written, rest = self.bytes[:end], self.bytes[end:]
        return bool((written == self._pattern[:end]).all()) and not rest.any()


def mapped(path: str, num_bytes: int) -> tuple[mmap.mmap, int]:
    """The memory of another process, and where it lies here."""
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        found = mmap.mmap(file, num_bytes)
    finally:
        os.close(file)
    return found, ctypes.addressof(ctypes.c_char.from_buffer(found))
