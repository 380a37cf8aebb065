"""The life of a client, and requests that are submitted and complete later."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from .. import _abi as abi
from .._base.numbers import integer, refuse
from .._native import names as _names
from .._native.lib import Library, fill, library
from ..errors import ClosedError, MoewireError
from ._log import Warnings
from ._parts import (
    MAX_TIMEOUT_US,
    Completion,
    Key,
    Keys,
    Namespace,
    Outcome,
    Request,
    key_file_of,
    key_of,
    keys_of,
    namespace_of,
    servers_of,
    timeout_of,
)

TRANSPORTS = {
    "auto": abi.MW_TRANSPORT_AUTO,
    "shm": abi.MW_TRANSPORT_SHM,
    "tcp": abi.MW_TRANSPORT_TCP,
}
PROTECTIONS = {"digest": abi.MW_PROTECTION_DIGEST, "encrypt": abi.MW_PROTECTION_ENCRYPT}
NAMES = {**_names.ARGUMENTS, "keys": "key_file"}


def protection_of(value: str) -> int:
    if value not in PROTECTIONS:
        raise refuse("protection", repr(value), ", ".join(PROTECTIONS))
    return PROTECTIONS[value]


def transport_of(value: str) -> int:
    if not isinstance(value, str) or value not in TRANSPORTS:
        raise refuse("transport", repr(value), ", ".join(TRANSPORTS))
    return TRANSPORTS[value]


class Submitting:
    """What a client is made of, and its asynchronous half; the base of ``Client``."""

    _lib: Library
    _closed: bool

    def _open(
        self,
        servers: str | Sequence[str] | None,
        namespace: str | Namespace,
        key_file: str | os.PathLike[str] | None,
        timeout_us: int,
        protection: str,
        transport: str,
        connect_timeout_us: int,
    ) -> None:
        config = abi.mw_store_config_t(
            size=ctypes.sizeof(abi.mw_store_config_t),
            key_source=abi.MW_KEYS_FILE,
            timeout_us=integer("timeout_us", timeout_us, 1, MAX_TIMEOUT_US),
            connect_timeout_us=integer("connect_timeout_us", connect_timeout_us, 1, MAX_TIMEOUT_US),
            protection=protection_of(protection),
            transport=transport_of(transport),
        )
        given = {
            "servers": servers_of(servers),
            "keys": key_file_of(key_file),
            **namespace_of(namespace),
        }
        texts = fill(config, given)  # alive during the call
        self._lib = library()
        self._lock = threading.RLock()
        self._held: dict[int, Request] = {}
        self._limbo: dict[int, Request] = {}  # being submitted
        self._id = abi.mw_store_t()
        _names.check(self._lib, self._lib.store_open(config, self._id), NAMES)
        del texts
        self._closed = False
        self._warnings = Warnings(self._lib, self._id)
        self._warnings.look()

    def _check(self, status: int) -> int:
        if status < 0 and self._closed and not self._lib.forked:
            raise ClosedError("the client is closed")
        return self._lib.check(status)

    def _alive(self) -> None:
        """Raises if the client is closed, or if this is a forked child."""
        self._lib.refuse_fork()
        if self._closed:
            raise ClosedError("the client is closed")

    def _put(
        self,
        keys: Iterable[Key],
        buffers: Iterable[Any],
        parent: Key | None,
        timeout_us: int | None,
    ) -> Request:
        self._alive()
        return self._putting(keys_of(keys), buffers, parent, timeout_us)

    def _putting(
        self,
        keys: Keys,
        buffers: Iterable[Any],
        parent: Key | None,
        timeout_us: int | None,
        alone: str = "",
    ) -> Request:
        request = Request(abi.MW_STORE_PUT, keys, timeout_us=timeout_of(timeout_us))
        if parent is not None:
            request.parent(key_of(parent, "parent"))
        request.buffers(buffers, False, alone)
        return request

    def _get(self, keys: Iterable[Key], buffers: Iterable[Any], timeout_us: int | None) -> Request:
        self._alive()
        return self._getting(keys_of(keys), buffers, timeout_us)

    def _getting(
        self,
        keys: Keys,
        buffers: Iterable[Any],
        timeout_us: int | None,
        writable: bool = True,
    ) -> Request:
        """``writable``: whether the buffers have to be; bytes of ``unfilled`` do not say so."""
        request = Request(abi.MW_STORE_GET, keys, timeout_us=timeout_of(timeout_us))
        request.buffers(buffers, writable)
        return request

    def _do(self, request: Request) -> Outcome:
        outcome = Outcome(request.num_keys)
        try:
            done = self._lib.store_do(self._id, request.struct, outcome.ok, outcome.lengths)
            self._check(done)
        finally:
            request.release()
        self._warnings.look(request.struct.op == abi.MW_STORE_PUT and 0 in bytes(outcome.ok))
        return outcome

    def _ask(
        self, op: int, keys: Iterable[Key], timeout_us: int | None, **fields: int
    ) -> list[bool]:
        wanted = keys_of(keys)
        timeout = timeout_of(timeout_us)
        if not wanted:
            self._alive()
            return []
        return self._do(Request(op, wanted, timeout_us=timeout, **fields)).oks()

    # -------------------------------------------------------------- submitting --

    def submit_put(
        self,
        keys: Iterable[Key],
        buffers: Iterable[Any],
        *,
        parent: Key | None = None,
        timeout_us: int | None = None,
    ) -> int:
        """Begins a ``batch_put``. The buffers must not change until its completion.

        Args:
            keys, buffers, parent, timeout_us: as for ``batch_put``.

        Returns:
            The id of its ``Completion``.

        Raises:
            WouldBlockError: as many requests run, or were not drained, as may; nothing has
                happened.
        """
        return self._submit(self._put(keys, buffers, parent, timeout_us))

    def submit_get(
        self, keys: Iterable[Key], buffers: Iterable[Any], *, timeout_us: int | None = None
    ) -> int:
        """Begins a ``batch_get_into``. The buffers are the library's until its completion.

        Args:
            keys, buffers, timeout_us: as for ``batch_get_into``.

        Returns:
            The id of its ``Completion``.

        Raises:
            WouldBlockError: as many requests run, or were not drained, as may; nothing has
                happened.
        """
        return self._submit(self._get(keys, buffers, timeout_us))

    def submit_exists(self, keys: Iterable[Key], *, timeout_us: int | None = None) -> int:
        """Begins an ``exists``.

        Args:
            keys, timeout_us: as for ``exists``.

        Returns:
            The id of its ``Completion``.

        Raises:
            WouldBlockError: as many requests run, or were not drained, as may; nothing has
                happened.
        """
        return self._submit_keys(abi.MW_STORE_EXISTS, keys, timeout_us)

    def submit_delete(self, keys: Iterable[Key], *, timeout_us: int | None = None) -> int:
        """Begins a ``delete``.

        Args:
            keys, timeout_us: as for ``delete``.

        Returns:
            The id of its ``Completion``.

        Raises:
            WouldBlockError: as many requests run, or were not drained, as may; nothing has
                happened.
        """
        return self._submit_keys(abi.MW_STORE_DELETE, keys, timeout_us)

    def _submit_keys(self, op: int, keys: Iterable[Key], timeout_us: int | None) -> int:
        self._alive()
        return self._submit(Request(op, keys_of(keys), timeout_us=timeout_of(timeout_us)))

    def _submit(self, request: Request) -> int:
        if request.num_keys == 0:
            raise refuse("keys", "0 keys", f"1 to {abi.MW_STORE_MAX_KEYS}")
        number = ctypes.c_uint64()
        with self._lock:  # a drain of another thread waits until the request is known
            # An exception of a signal handler may come at any point below: the memory is then
            # held until the client is closed.
            self._limbo[id(request)] = request
            status = self._lib.store_submit(self._id, request.struct, number)
            if status == abi.MW_OK:
                self._held[number.value] = request
            del self._limbo[id(request)]
            self._check(status)
        return number.value

    def event_fd(self) -> int:
        """A descriptor that is readable while there are completions; then call ``drain``.

        Returns:
            The descriptor, which is the client's: it must not be read or closed.
        """
        descriptor = ctypes.c_int32()
        self._check(self._lib.store_event_fd(self._id, descriptor))
        return descriptor.value

    def drain(self) -> list[Completion]:
        """Takes the completions that there are. Never blocks.

        Returns:
            Those of requests that have ended, in that order.
        """
        found: list[Completion] = []
        done = abi.mw_store_completion_t(size=ctypes.sizeof(abi.mw_store_completion_t))
        outcome = Outcome(abi.MW_STORE_MAX_KEYS)
        while (
            self._check(self._lib.store_drain(self._id, done, outcome.ok, outcome.lengths))
            == abi.MW_OK
        ):
            found.append(self._completion(done, outcome))
        self._warnings.look()
        return found

    def _completion(self, done: abi.mw_store_completion_t, outcome: Outcome) -> Completion:
        with self._lock:
            request = self._held.pop(done.id, None)
        if request is not None:
            request.release()
        error = (
            "the client was closed" if done.status else done.too_large.decode("utf-8", "replace")
        )
        oks = list(map(bool, outcome.ok[: done.num_keys]))
        return Completion(done.id, oks, outcome.lengths[: done.num_keys], error or None)

    # ------------------------------------------------------------------ closing --

    @property
    def closed(self) -> bool:
        """Whether the client is closed."""
        return self._closed

    def close(self) -> None:
        """Ends what runs, as misses, and the connections. Idempotent."""
        if self._lib.forked:  # another thread of the parent may have held the lock
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._lib.check(self._lib.store_close(self._id))
        for request in (*self._held.values(), *self._limbo.values()):
            request.release()
        self._held.clear()
        self._limbo.clear()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            with suppress(MoewireError):
                self.close()
