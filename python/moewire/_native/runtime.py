"""The native side of one buffer: its id, its errors, its mappings."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import resource
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from ctypes import byref
from typing import Any

from .. import _abi as abi
from ..errors import ClosedError, DeadlineError, MoewireError
from . import deferred_log, names
from .event_log import EventLog
from .lib import Library, fill, library
from .memory import MappingCache
from .plan import SLICE_US

MAX_METADATA_BYTES = 1024

_CLOSED_TEXT = "the buffer is closed"


def size_hint(shape: abi.mw_shape_t) -> int:
    """Bytes for operations up to this shape, in bf16 or fp8 (address space, not memory)."""
    lib = library()
    shape.size = abi.SIZE_OF[abi.mw_shape_t]
    num_bytes = ctypes.c_uint64()
    names.check(lib, lib.buffer_size_hint(byref(shape), byref(num_bytes)))
    return num_bytes.value


def _say_raised(lib: Library) -> None:
    """The library, and the first buffer of a process, raise its limit of descriptors."""
    before, now = lib.open_files, resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    lib.open_files = now
    if now != before:
        logging.getLogger("moewire").info(
            "open files: the limit of this process was %d and is %d now", before, now
        )


class Runtime:
    """One native buffer. Any thread may use it; the library serialises what must be.

    ``_ep.engine`` adds the operations.
    """

    def __init__(
        self,
        rank: int,
        num_ranks: int,
        num_bytes: int,
        num_slots: int,
        vector_width: int,
        flags: int,
        slow_after_us: int,
        tuning: Mapping[str, int | bytes],
    ) -> None:
        self.lib = library()
        self.id = abi.mw_buffer_t()
        self.closed = self._freed = False
        self._closing = threading.RLock()  # reentrant: a buffer may be collected anywhere
        self.num_ranks = num_ranks
        self._mappings = MappingCache(self.lib, max(2, num_slots))
        self.mapping = self._mappings.get  # that a dispatch's result lies in
        # Called by the first close: drops views. Tensors that are still held keep the memory.
        self._to_forget: list[Callable[[], None]] = [self._mappings.clear]
        config = abi.mw_config_t(
            abi.SIZE_OF[abi.mw_config_t],
            flags,
            rank,
            num_ranks,
            num_bytes,
            num_slots,
            vector_width,
            slow_after_us=slow_after_us,
        )
        texts = fill(config, tuning)
        self._names = names.of_buffer(tuning)
        names.check(self.lib, self.lib.buffer_create(byref(config), byref(self.id)), self._names)
        _say_raised(self.lib)
        del texts  # the library has copied them
        self.events = EventLog(self.lib, self.id, rank)

    def metadata(self) -> bytes:
        """The bytes that every other rank must pass to ``connect``."""
        length = ctypes.c_uint64()
        data = ctypes.create_string_buffer(MAX_METADATA_BYTES)
        self.check(self.lib.buffer_metadata(self.id, data, MAX_METADATA_BYTES, byref(length)))
        return data.raw[: length.value]

    def connect(self, metadata: Sequence[bytes], timeout_us: int) -> None:
        """Collective; blocks until every rank is connected. Ctrl-C closes the buffer."""
        failures: list[BaseException] = []
        worker = threading.Thread(
            target=self._connect, args=(metadata, timeout_us, failures), daemon=True
        )
        worker.start()
        try:
            while worker.is_alive():
                worker.join(SLICE_US / 1e6)
        except BaseException:
            self.abandon()
            worker.join()
            raise
        if failures:
            raise failures[0]

    def _connect(
        self, metadata: Sequence[bytes], timeout_us: int, failures: list[BaseException]
    ) -> None:
        # Runs in a thread of its own: the call cannot be cut into slices. The text of an error
        # belongs to the thread that failed, so it is fetched here.
        keep = [ctypes.create_string_buffer(item, max(1, len(item))) for item in metadata]
        table = (abi.mw_bytes_t * len(keep))()
        for entry, data, item in zip(table, keep, metadata, strict=True):
            entry.address = ctypes.addressof(data)
            entry.num_bytes = len(item)
        try:
            self.check(self.lib.buffer_connect(self.id, table, len(keep), timeout_us))
        except BaseException as error:
            failures.append(error)

    def update(self) -> None:
        """Leaves the epoch and begins a rendezvous: ``metadata`` is new."""
        self.refuse_closed()
        self.check(self.lib.buffer_update(self.id))

    def install(self) -> None:
        """Begins the epoch that ``connect`` has prepared."""
        self.check(self.lib.buffer_install(self.id))

    def members(self) -> abi.mw_members_t:
        """The ranks that are in the group now."""
        members = abi.mw_members_t(size=abi.SIZE_OF[abi.mw_members_t])
        self.refuse_closed()
        self.check(self.lib.buffer_members(self.id, byref(members)))
        return members

    def close(self) -> None:
        """Leaves the group and frees the buffer. After that it does nothing.

        If something cannot be freed, on a device because it still works, it raises, and may be
        called again.
        """
        if self._freed or self.lib.forked:
            return
        self._close()
        deferred_log.flush()

    def _close(self) -> None:
        self._leave()

    def _leave(self) -> None:
        """``close`` without logging: when a buffer is collected, any lock may be held."""
        if self._freed or self.lib.forked:
            return
        first, self.closed = not self.closed, True
        if first:
            for forget in self._to_forget:
                forget()
        with self._closing:
            self._free()

    def _free(self) -> None:
        # Another thread may have freed it while this one waited for the lock.
        if self._freed:
            return
        status = self.lib.buffer_close(self.id)
        if status < 0 and status != abi.MW_ERR_HANDLE:
            raise self.error(status)
        self._freed = True

    def abandon(self) -> None:
        """``close`` for a caller that can do nothing about its failure."""
        with contextlib.suppress(MoewireError):
            self._leave()

    def refuse_closed(self) -> None:
        """Raises ``ClosedError`` after ``close``, and ``ForkedError`` in a forked child."""
        self.lib.refuse_fork()
        if self.closed:
            raise ClosedError(_CLOSED_TEXT)

    def check(self, status: int) -> int:
        """Returns the status, or raises its exception if it is an error."""
        if status < 0:
            raise self.error(status)
        return status

    def error(self, status: int) -> MoewireError:
        """The exception for the call of this thread that has just failed."""
        if status == abi.MW_ERR_HANDLE and self.closed:
            return ClosedError(_CLOSED_TEXT)
        return names.error(self.lib, status, self._names)

    def combine_buffer(self, handle: abi.mw_handle_t, timeout_us: int) -> int:
        """The address of a handle's combine buffer, once no rank reads it any more."""
        deadline = None if timeout_us < 0 else time.monotonic() + timeout_us / 1e6
        address = ctypes.c_uint64()
        call = self.lib.buffer_combine_buffer
        while self.check(call(self.id, handle, SLICE_US, byref(address))):
            self.events.look()
            if deadline is not None and time.monotonic() > deadline:
                raise DeadlineError(f"the combine buffer was still read after {timeout_us} us")
        return address.value

    def counters(self) -> dict[str, Any]:
        """Totals since construction; the two lists are indexed by rank."""
        counters = abi.mw_counters_t(size=abi.SIZE_OF[abi.mw_counters_t])
        self.refuse_closed()
        self.check(self.lib.buffer_counters(self.id, byref(counters)))
        result: dict[str, Any] = {}
        for name, _ in abi.mw_counters_t._fields_[1:]:
            value = getattr(counters, name)
            result[name] = value if isinstance(value, int) else list(value)[: self.num_ranks]
        return result
