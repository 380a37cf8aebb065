"""Memory of a rank as `moewire top` finds it, made by hand, and files that only look like it."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator

MAGIC = 0x314C45545F57454D
# Where a rank has its area: after the header of its memory and three pages of control.
BEGIN = 20480 + 3 * 4096
HEAD_BYTES = BEGIN + 52 * 4096
WAITS_FOR, BEAT = 4096, 4096 + 128
RING, EXPERTS, LINKS = 73728, 8192, 204800


def header(rank: int, num_ranks: int, group: int) -> list[int]:
    """The words of core/telemetry, in order."""
    words = [0] * 32
    words[0], words[1] = MAGIC, 3 | 1 << 32
    words[2], words[3], words[4] = rank | num_ranks << 32, os.getpid() | 2 << 32, group
    words[5], words[6], words[7] = 4, 128 | 1024 << 32, RING | EXPERTS << 32
    words[8], words[9] = 3 * 4096 | WAITS_FOR << 32, BEAT | 48 << 32
    words[10], words[17], words[19] = 1, 1, LINKS | 128 << 32
    return words


def record(sequence: int) -> bytes:
    """A dispatch that took 90 ns."""
    words = [128 | sequence << 32, 1 | 1 << 32 | 0xFFFF << 48, 8 << 32, 3]
    words += [10, 20, 40, 50, 60, 100, 10, 5, 8 | 8 << 32, 4096, 0, 0]
    return struct.pack("<16Q", *words)


def page(rank: int = 1, num_ranks: int = 3, group: int = 7) -> bytearray:
    """All that is read of the memory of a rank that has done one dispatch."""
    head = bytearray(HEAD_BYTES)
    struct.pack_into("<32Q", head, BEGIN, *header(rank, num_ranks, group))
    head[BEGIN + RING : BEGIN + RING + 128] = record(1)
    struct.pack_into("<Q", head, BEGIN + 8 * 32, 1)  # dispatches
    return head


def put(head: bytearray, word: int, value: int) -> bytearray:
    """The page with another word of the area."""
    struct.pack_into("<Q", head, BEGIN + 8 * word, value)
    return head


@contextlib.contextmanager
def memory(rank: int, head: bytes | bytearray, size: int | None = None) -> Iterator[int]:
    """A memory file of this process that is called as a rank's is. It has no seals."""
    file = os.memfd_create(f"moewire-rank-{rank}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(file, len(head) if size is None else size)
        os.pwrite(file, head, 0)
        yield file
    finally:
        os.close(file)
