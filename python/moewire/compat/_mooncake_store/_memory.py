"""Memory that callers name by address, and memory that they are given."""

from __future__ import annotations

import ctypes
import mmap
import operator
import os
import threading
from pathlib import Path
from typing import Any

from ._codes import BAD_ARGUMENT, Problem, log

_END = 1 << 63  # of addresses of processes


def piece(address: int, num_bytes: int) -> Any:
    """The bytes at an address, as a writable buffer. Nothing holds the memory."""
    return (ctypes.c_char * num_bytes).from_address(address)


class Regions:
    """What was registered of a process's memory, and whether addresses can be used at all.

    Safe for use by several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sizes: dict[int, int] = {}
        self._probe = os.memfd_create("moewire-probe", os.MFD_CLOEXEC)

    def __del__(self) -> None:
        if hasattr(self, "_probe"):
            os.close(self._probe)

    def add(self, address: int, num_bytes: int) -> None:
        """Registers memory.

        Raises:
            Problem: it is none of this process's host memory.
        """
        self.pieces([address], [num_bytes])
        with self._lock:
            self._sizes[address] = num_bytes

    def remove(self, address: int) -> bool:
        """Whether memory was registered that begins there."""
        with self._lock:
            return self._sizes.pop(address, None) is not None

    def left(self, address: int) -> int:
        """How many registered bytes there are from an address on."""
        with self._lock:
            ends = [a + n for a, n in self._sizes.items() if a <= address < a + n]
        return max(ends, default=address) - address

    def pieces(self, addresses: list[int], sizes: list[int]) -> list[Any]:
        """The buffers of a block.

        Raises:
            Problem: null, no size, or memory that the CPU cannot read, such as a device's.
        """
        if not addresses or len(addresses) != len(sizes):
            given = f"{len(addresses)} addresses and {len(sizes)} sizes given"
            raise Problem(BAD_ARGUMENT, f"{given}; allowed: as many, and one at least")
        found = [_checked(a, n) for a, n in zip(addresses, sizes, strict=True)]
        unknown = [at for at, one in enumerate(found) if len(one) > self.left(addresses[at])]
        self._try([found[at] for at in unknown])
        return found

    def _try(self, buffers: list[Any]) -> None:
        """The kernel reads the first and the last byte of each; what it cannot read it reports."""
        bytes_ = [
            piece(ctypes.addressof(one) + at, 1) for one in buffers for at in (0, len(one) - 1)
        ]
        for at in range(0, len(bytes_), 512):
            some = bytes_[at : at + 512]
            try:
                done = os.pwritev(self._probe, some, 0)
            except OSError:
                done = 0
            if done < len(some):
                where = f"{ctypes.addressof(some[done]):#x}"
                raise Problem(BAD_ARGUMENT, f"the CPU cannot read memory at {where}")


def _checked(address: int, num_bytes: int) -> Any:
    address, num_bytes = operator.index(address), operator.index(num_bytes)
    if not 0 < address < _END:
        raise Problem(BAD_ARGUMENT, f"buffer_ptr: {address} given; allowed: an address")
    if not 0 < num_bytes < _END - address:
        raise Problem(BAD_ARGUMENT, f"size: {num_bytes} given; allowed: 1 or more")
    return piece(address, num_bytes)


class BufferHandle(bytearray):
    """The bytes of a block, in memory of this process. It must not be resized."""

    def ptr(self) -> int:
        """The address, valid while this object is there."""
        return ctypes.addressof((ctypes.c_char * len(self)).from_buffer(self)) if self else 0

    def size(self) -> int:
        """In bytes."""
        return len(self)


class MooncakeHostMemAllocator:
    """Memory of the host, page-aligned and zeroed. Safe for use by several threads."""

    def __init__(self) -> None:
        self._mapped: dict[int, mmap.mmap] = {}

    def alloc(self, size: int) -> int:
        """Allocates.

        Args:
            size: in bytes.

        Returns:
            The address; 0 if there is no such memory.
        """
        try:
            mapped = mmap.mmap(-1, size)
        except (OSError, ValueError, OverflowError) as error:
            log.error("mooncake.store alloc: %d bytes: %s", size, error)
            return 0
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        self._mapped[address] = mapped
        return address

    def free(self, ptr: int) -> int:
        """Frees what ``alloc`` has returned; its address must not be used any more.

        Args:
            ptr: the address.

        Returns:
            0, or −600 for another address.
        """
        mapped = self._mapped.pop(ptr, None)
        if mapped is None:
            log.error("mooncake.store free: %#x was not allocated here", ptr)
            return BAD_ARGUMENT
        mapped.close()
        return 0


def bind_to_numa_node(node: int) -> None:
    """Lets the calling thread run on the CPUs of a node only. Memory follows at first touch.

    Args:
        node: its number; without such a node there is a line of log and nothing changes.
    """
    listed = Path(f"/sys/devices/system/node/node{operator.index(node)}/cpulist")
    try:
        os.sched_setaffinity(0, _cpus(listed.read_text()))
    except (OSError, ValueError) as error:
        log.error("mooncake.store bind_to_numa_node(%d): %s", node, error)


def _cpus(text: str) -> set[int]:
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found
