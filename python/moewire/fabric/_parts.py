"""Regions and transfers, the objects of a fabric. ``moewire.fabric`` has the contract."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, NamedTuple

from .. import _abi as abi
from .._base.numbers import integer, refuse
from .._native.lib import Library
from ..errors import DeadlineError, from_status
from ._calls import RESULT, spare_results, take_result
from ._memory import Memory

# A wait returns this often to let signals be handled.
_SLICE_US = 50_000
MAX_64 = (1 << 64) - 1
MAX_63 = (1 << 63) - 1
IN_PROGRESS = 1


class Remote(NamedTuple):
    """What a peer needs to reach a region: plain numbers, sent to the peer as they are."""

    address: int
    num_bytes: int
    key: int


class Result(NamedTuple):
    """How a transfer has ended."""

    num_bytes: int
    """Bytes moved; of ``receive_imm`` those of the write, or of its last slice."""
    imm: int
    """Of ``receive_imm`` the number; of ``recv`` which message it is, from 1, modulo 2**32."""


def slices(timeout_us: int) -> Iterator[int]:
    """Parts of a timeout, at least one."""
    integer("timeout_us", timeout_us, -1, MAX_63)
    end = time.monotonic_ns() // 1000 + timeout_us
    left = timeout_us
    while True:
        yield _SLICE_US if timeout_us == -1 else min(left, _SLICE_US)
        left = end - time.monotonic_ns() // 1000
        if timeout_us != -1 and left <= 0:
            return


class Text:
    """A text of the library, of any length."""

    def __init__(self, function: Any, check: Any) -> None:
        length = ctypes.c_uint64()
        check(function(None, 0, length))
        room = length.value + 256  # it may grow meanwhile
        buffer = ctypes.create_string_buffer(room)
        check(function(buffer, room, length))
        self.text = buffer.raw[: length.value].decode("utf-8", "replace")


class Opened:
    """What regions and transfers need of the fabric that made them; the base of ``Fabric``."""

    _lib: Library
    _id: abi.mw_fabric_t
    _closed: bool
    _lock: threading.RLock
    _regions: set[Region]

    def _check(self, status: int) -> int:
        return self._lib.check(status)


class Region:
    """Registered memory; ``Fabric.register`` makes one. A context manager.

    It keeps the memory alive, and a resizable buffer from being resized, until ``close()``
    has returned or the fabric is closed.
    """

    def __init__(self, fabric: Opened, region_id: abi.mw_region_t, memory: Memory) -> None:
        self._fabric = fabric
        self._id = region_id
        self._number: int = region_id.id
        self._memory: Memory | None = memory
        self.num_bytes: int = memory.num_bytes
        """Length of the memory."""

    @property
    def remote(self) -> Remote:
        """What a peer needs to reach this region; useless once the region is closed."""
        value = abi.mw_remote_t(size=ctypes.sizeof(abi.mw_remote_t))
        self._fabric._check(self._fabric._lib.region_remote(self._id, value))
        return Remote(value.address, value.num_bytes, value.key)

    @property
    def closed(self) -> bool:
        """Whether the memory is the caller's alone again."""
        return self._memory is None

    def close(self) -> None:
        """Ends the registration: later accesses of peers are refused. Idempotent.

        Raises:
            BusyError: transfers that name the region are not released; nothing happened.
        """
        with self._fabric._lock:
            if self._memory is None:
                return
            self._fabric._check(self._fabric._lib.region_close(self._id))
            self._fabric._regions.discard(self)
            self._free()

    def _free(self) -> None:
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.release()

    def __enter__(self) -> Region:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Transfer:
    """One operation; the methods of ``Fabric`` begin one. A context manager that closes it.

    From its beginning until it is *released*, the carrier owns its bytes: the caller must not write
    them, and must not look at those of a read or a receive. The transfer keeps its region alive.
    """

    __slots__ = ("__weakref__", "_closed", "_fabric", "_id", "_region")

    def __init__(self, fabric: Opened, transfer_id: abi.mw_transfer_t, region: Region | None):
        self._fabric = fabric
        self._id = transfer_id
        self._region = region
        self._closed = False

    def wait(self, timeout_us: int = -1, *, released: bool = True) -> Result:
        """Waits until the transfer has ended.

        Args:
            timeout_us: how long to wait; -1: no limit.
            released: wait until its memory is the caller's again, too.

        Returns:
            How it has ended.

        Raises:
            DeadlineError: not within ``timeout_us``. The transfer goes on.
            MoewireError: how it has failed: ``UnreachableError``, ``RefusedError``,
                ``CancelledError``, ``ClosedError``, ...
        """
        until = abi.MW_UNTIL_RELEASED if released else abi.MW_UNTIL_ENDED
        integer("timeout_us", timeout_us, -1, MAX_63)
        end = time.monotonic_ns() // 1000 + timeout_us
        part = _SLICE_US if timeout_us < 0 else min(timeout_us, _SLICE_US)
        while (result := self._look(until, part)) is None:
            if timeout_us >= 0:
                part = min(end - time.monotonic_ns() // 1000, _SLICE_US)
                if part <= 0:
                    raise DeadlineError(f"the transfer has not ended within {timeout_us} us")
        return result

    def test(self) -> Result | None:
        """Looks whether the transfer has ended. Never blocks.

        Returns:
            The result if it has ended and is released, else None.

        Raises:
            MoewireError: as for ``wait``.
        """
        return self._look(abi.MW_UNTIL_RELEASED, 0)

    def cancel(self) -> None:
        """Cancels the transfer, unless it has ended. Bytes may move until it is released.

        A ``recv`` is released by the next message that comes into it, or with its connection.
        """
        self._fabric._check(self._fabric._lib.transfer_cancel(self._id))

    def close(self) -> None:
        """Ends its use; a transfer that has not ended is cancelled. Idempotent."""
        fabric = self._fabric
        if self._closed or fabric._lib.forked:
            return
        self._closed = True
        if not fabric._closed:
            fabric._lib.transfer_close(self._id)
        self._region = None

    def _look(self, until: int, timeout_us: int) -> Result | None:
        """Waits; None: it has not ended, or is not released, so far."""
        fabric, result = self._fabric, take_result()
        status = fabric._lib.transfer_wait(self._id, until, timeout_us, result)
        _, ended, num_bytes, imm, _ = RESULT.unpack_from(result)
        spare_results.append(result)
        if fabric._check(status) == IN_PROGRESS:
            return None
        if ended < 0:
            text = Text(lambda *to: fabric._lib.transfer_error(self._id, *to), fabric._check).text
            raise from_status(ended, text)
        return Result(num_bytes, imm)

    def __enter__(self) -> Transfer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.close()


def address_text(name: str, value: object) -> bytes:
    """An address or the name of an interface, which the library reads."""
    if not isinstance(value, str):
        raise refuse(name, f"a {type(value).__name__}", "a text")
    return value.encode()


# The argument that each kind of keys comes from.
KEY_SOURCES = {
    abi.MW_KEYS_BYTES: "keys",
    abi.MW_KEYS_FILE: "key_file",
    abi.MW_KEYS_ENV: "keys_variable",
}


def key_source(
    keys: bytes | str | None,
    key_file: str | os.PathLike[str] | None,
    keys_variable: str | None,
    keys_file: str | os.PathLike[str] | None,
) -> tuple[int, bytes]:
    """``mw_fabric_config_t``'s ``key_source`` and ``keys``. Errors show no key.

    ``keys_file`` is the old name of ``key_file``.
    """
    name, path = ("key_file", key_file) if keys_file is None else ("keys_file", keys_file)
    if key_file is not None and keys_file is not None:
        raise refuse("key_file, keys_file", "both names of one argument", "one of them")
    given = [value for value in (keys, path, keys_variable) if value is not None]
    if len(given) != 1:
        raise refuse("keys, key_file, keys_variable", f"{len(given)} of them", "exactly one")
    if keys is not None:
        if not isinstance(keys, str | bytes | bytearray):
            raise refuse("keys", f"a {type(keys).__name__}", "the text of the keys")
        return abi.MW_KEYS_BYTES, keys.encode() if isinstance(keys, str) else bytes(keys)
    if path is not None:
        if not isinstance(path, str | bytes | os.PathLike):
            raise refuse(name, f"a {type(path).__name__}", "a path")
        return abi.MW_KEYS_FILE, os.fsencode(path)
    if not isinstance(keys_variable, str):
        raise refuse("keys_variable", f"a {type(keys_variable).__name__}", "a variable's name")
    return abi.MW_KEYS_ENV, keys_variable.encode()
