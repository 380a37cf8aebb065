"""A block that was looked up."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import time
from contextlib import suppress
from typing import Any

from .. import _abi as abi
from .._native.lib import Library
from ..errors import MoewireError, StaleHandleError
from ._memory import Memory


class Kept:
    """A lease of the library: the server keeps the block until ``end``."""

    __slots__ = ("_id", "_lib", "until")

    def __init__(self, lib: Library, number: int) -> None:
        self._lib = lib
        self._id: abi.mw_store_lease_t | None = abi.mw_store_lease_t(number)
        self.until = 0.0

    def mapped(self, length: int) -> memoryview | None:
        """The block where it lies, if that is memory that can be mapped."""
        if length == 0 or self._id is None:
            return None
        place = abi.mw_store_place_t(size=ctypes.sizeof(abi.mw_store_place_t))
        asked = time.monotonic()
        if self._lib.check(self._lib.store_lease_place(self._id, place)) != abi.MW_OK:
            return None
        ahead = place.offset % mmap.ALLOCATIONGRANULARITY
        try:
            pages = _map(place.fd, ahead + length, place.offset - ahead)
        except (OSError, ValueError):  # no descriptor or no address space is left: copy it
            return None
        finally:
            os.close(place.fd)
        self.until = asked + place.left_us / 1e6
        pages.kept = self
        return memoryview(pages)[ahead:]

    def read(self, into: ctypes.c_uint8, address: int, num_bytes: int) -> None:
        """Copies the block, which has to have room."""
        self._lib.check(self._lib.store_lease_read(self._id, address, num_bytes, into))

    def end(self) -> bool:
        """Ends it. Idempotent.

        Returns:
            Whether the server has kept the block until now. True if it was ended before.
        """
        lease, self._id = self._id, None
        kept = ctypes.c_uint8(lease is None)
        if lease is not None:
            with suppress(MoewireError):  # the client was closed, or this is a forked child
                self._lib.check(self._lib.store_lease_end(lease, kept))
        return bool(kept.value)

    def __del__(self) -> None:
        if getattr(self, "_id", None) is not None:
            self.end()


class _Pages(mmap.mmap):
    """A mapping that owns the lease of its block, which ends with the last view at the latest."""

    kept: Kept | None = None


def _map(fd: int, length: int, offset: int) -> _Pages:
    """Maps a part of a file, without a descriptor that the mapping keeps."""
    if sys.version_info >= (3, 13):
        return _Pages(fd, length, prot=mmap.PROT_READ, offset=offset, trackfd=False)
    # Before, a mapping of a file keeps one of its own, and one of no file does not.
    pages = _Pages(-1, length, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
    room = Memory("pages", pages, False)
    try:
        found = _mmap(
            room.address, length, mmap.PROT_READ, mmap.MAP_SHARED | _MAP_FIXED, fd, offset
        )
    finally:
        room.release()
    if found != room.address:
        _lost.append(pages)  # its addresses may be another one's by now
        raise OSError(ctypes.get_errno(), "mmap")
    return pages


_MAP_FIXED = 0x10
_lost: list[_Pages] = []
_mmap = ctypes.CDLL(None, use_errno=True).mmap
_mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
)
_mmap.restype = ctypes.c_void_p


class Lease:
    """The bytes of a block; a context manager that gives them as a memoryview, and releases them.

    It has the length, the items and the ``bytes`` of that memoryview, and is a buffer itself from
    Python 3.12 on: ``memoryview(lease)``, ``numpy.frombuffer(lease)``. Before, no class that is
    written in Python can be one: use ``data`` there.

    They are a copy, or the block where it lies in the memory of a server of this host. Such a
    block stays what it is for 30 s, as long as the connection to the server is there, whatever
    becomes of its key; the memory can be read in any case. Without ``release`` the lease ends with
    the last view of ``data``, such as an array. What was read of it counts once
    ``release`` has returned True, or the ``with`` has ended without ``StaleHandleError``.
    """

    __slots__ = ("_data", "_kept")

    def __init__(self, data: memoryview, kept: Kept | None = None) -> None:
        self._data = data
        self._kept = kept

    @property
    def data(self) -> memoryview:
        """The block. After ``release`` a use raises ``ValueError``.

        Raises:
            StaleHandleError: the time of the lease has passed.
        """
        if self._kept is not None and time.monotonic() > self._kept.until:
            raise StaleHandleError("the time of the lease has passed")
        return self._data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, at: int | slice) -> Any:
        return self.data[at]

    def __bytes__(self) -> bytes:
        return bytes(self.data)

    def __buffer__(self, flags: int) -> memoryview:
        return self.data  # itself: ``release`` must see that its memory is in use

    def release(self) -> bool:
        """Ends the lease. Idempotent.

        Returns:
            Whether the bytes have been the block's until now: if not, what was read may be wrong.

        Raises:
            BufferError: something else, such as an array, has the memory of ``data``.
        """
        self._data.release()
        return self._kept is None or self._kept.end()

    def __enter__(self) -> memoryview:
        return self.data

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if not self.release() and kind is None:
            raise StaleHandleError(
                "the server has not kept the block, or does not answer: what was read may be wrong"
            )
