"""The client of the block store: synchronous calls."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from .. import _abi as abi
from .._base.numbers import refuse
from .._native.lib import read_json
from ..errors import UnreachableError
from ._lease import Kept, Lease
from ._memory import Memory, unfilled
from ._parts import (
    MAX_TIMEOUT_US,
    Key,
    Keys,
    Namespace,
    Outcome,
    Request,
    key_of,
    keys_of,
    timeout_of,
)
from ._submit import Submitting

_LEAST_GUESS = 1 << 16
_MAX_TTL_S = 366 * 24 * 3600


class Client(Submitting):
    """A client of the servers of a namespace. A context manager that closes it.

    Every call is safe for use by several threads. A miss, a full server and a server that cannot
    be reached are ``None``, ``-1`` or ``False``. Every call raises ``InvalidArgument`` for a bad
    argument, ``ClosedError`` once the client is closed, ``ForkedError`` in a forked child, and
    nothing else, but ``submit_*`` at the cap and a ``Lease`` that is over.

    Keys are ``bytes`` or ``str`` of 1 to 512 bytes. The keys of one call, at most 512, are a chain
    in order: the beginning of a prompt first. A ``timeout_us`` is how long no byte may come or go.

    Args:
        servers: "host:port", several in a sequence or with commas; keys are spread over them.
            None: ``MOEWIRE_STORE_SERVERS``.
        namespace: whose blocks these are; a ``str`` is a ``Namespace`` with that model.
        key_file: a path; only its owner may be able to read the file. None: ``MOEWIRE_KEY_FILE``.
        transport: what brings blocks. "shm": those of gets and lookups are read where they lie,
            and those of puts copied from memory that both have mapped, at servers of this host;
            another server refuses the client. "tcp": the connection brings them.
            "auto": the former where it can be. A server where shared memory itself fails stays
            with TCP as long as the client lives, and a warning says so once.
        timeout_us: of calls that do not say.
        connect_timeout_us: until a server must have taken a connection. The constructor waits so
            long at most, then that server's keys are misses until it is there.
        protection: what a connection protects: "digest", its bytes from changes; "encrypt", also
            from being read. The same at the servers.

    Raises:
        InvalidArgument: an argument is wrong, or the key file cannot be read.
        RefusedError: a server does not take this client's key, format or clock.
    """

    def __init__(
        self,
        servers: str | Sequence[str] | None = None,
        *,
        namespace: str | Namespace,
        key_file: str | os.PathLike[str] | None = None,
        transport: Literal["auto", "shm", "tcp"] = "auto",
        timeout_us: int = 250_000,
        connect_timeout_us: int = 2_000_000,
        protection: Literal["digest", "encrypt"] = "digest",
    ) -> None:
        self._closed = True  # until it is open
        self._guess = _LEAST_GUESS
        self._open(
            servers, namespace, key_file, timeout_us, protection, transport, connect_timeout_us
        )

    # ------------------------------------------------------------------ blocks --

    def put(
        self, key: Key, data: Any, *, parent: Key | None = None, timeout_us: int | None = None
    ) -> bool:
        """Stores a block.

        Args:
            key: its key.
            data: a buffer or a list of buffers, one behind the other.
            parent: the key of the block before it in its chain.
            timeout_us: see the class.

        Returns:
            Whether the block is there. False: the key has another block, which stays; or there
            is no room, or no server; or the block is larger than a segment of its server, which
            the logger ``moewire`` says once, with both numbers.
        """
        keys = Keys([key_of(key)])
        self._alive()
        return self._do(self._putting(keys, [data], parent, timeout_us, "data")).oks()[0]

    def batch_put(
        self,
        keys: Iterable[Key],
        buffers: Iterable[Any],
        *,
        parent: Key | None = None,
        timeout_us: int | None = None,
    ) -> list[bool]:
        """Stores the blocks of a chain.

        Args:
            keys: their keys.
            buffers: one for each key; an item may be a list of buffers.
            parent: the key before the first one.
            timeout_us: see the class.

        Returns:
            For each key what ``put`` returns.
        """
        request = self._put(keys, buffers, parent, timeout_us)
        return self._do(request).oks() if request.num_keys else []

    def get(self, key: Key, *, timeout_us: int | None = None) -> bytes | None:
        """Gets a block.

        Args:
            key: its key.
            timeout_us: see the class.

        Returns:
            Its bytes, or None for a miss.
        """
        wanted, room = Keys([key_of(key)]), self._guess
        self._alive()
        for _ in range(3):  # blocks of a namespace are as long as the last one, as a rule
            data = unfilled(room)
            length = self._do(self._getting(wanted, [data], timeout_us, False)).lengths[0]
            if 0 <= length <= room:
                self._guess = max(length, _LEAST_GUESS)
                return data[:length]
            if length < 0:
                return None
            room = length
        return None

    def batch_get_into(
        self, keys: Iterable[Key], buffers: Iterable[Any], *, timeout_us: int | None = None
    ) -> list[int]:
        """Gets blocks into the caller's memory.

        Args:
            keys: their keys.
            buffers: a writable buffer for each key; an item may be a list of buffers.
            timeout_us: see the class.

        Returns:
            For each key the block's bytes, -1 for a miss; a block for which its buffers have no
            room is a miss.
        """
        return self._get_into(keys, buffers, timeout_us).stored()

    def _get_into(
        self, keys: Iterable[Key], buffers: Iterable[Any], timeout_us: int | None
    ) -> Outcome:
        request = self._get(keys, buffers, timeout_us)
        return self._do(request) if request.num_keys else Outcome(0)

    def exists(self, keys: Iterable[Key], *, timeout_us: int | None = None) -> list[bool]:
        """Says which blocks there are.

        Args:
            keys: their keys.
            timeout_us: see the class.

        Returns:
            By position.
        """
        return self._ask(abi.MW_STORE_EXISTS, keys, timeout_us)

    def prefix(self, keys: Iterable[Key], *, timeout_us: int | None = None) -> int:
        """Counts the blocks of a chain from its beginning without a gap.

        Args:
            keys: the chain.
            timeout_us: see the class.

        Returns:
            How many of the first keys are there.
        """
        found = self.exists(keys, timeout_us=timeout_us)
        return found.index(False) if False in found else len(found)

    def delete(self, keys: Iterable[Key], *, timeout_us: int | None = None) -> int:
        """Deletes blocks.

        Args:
            keys: their keys.
            timeout_us: see the class.

        Returns:
            How many there were.
        """
        return sum(self._ask(abi.MW_STORE_DELETE, keys, timeout_us))

    def touch(self, keys: Iterable[Key], *, timeout_us: int | None = None) -> None:
        """Says that blocks will be wanted: they are evicted later.

        Args:
            keys: their keys.
            timeout_us: see the class.
        """
        self._ask(abi.MW_STORE_TOUCH, keys, timeout_us)

    def pin(
        self, keys: Iterable[Key], ttl_s: float, *, timeout_us: int | None = None
    ) -> list[bool]:
        """Keeps blocks from being evicted.

        Args:
            keys: their keys.
            ttl_s: for how many seconds; 0 ends it.
            timeout_us: see the class.

        Returns:
            Which of them there are, by position.
        """
        if isinstance(ttl_s, bool) or not isinstance(ttl_s, int | float):
            raise refuse("ttl_s", f"a {type(ttl_s).__name__}", "a number")
        if not 0 <= ttl_s <= _MAX_TTL_S:
            raise refuse("ttl_s", ttl_s, f"0 to {_MAX_TTL_S}")
        return self._ask(abi.MW_STORE_PIN, keys, timeout_us, hold_us=int(ttl_s * 1e6))

    def lookup(self, keys: Iterable[Key], *, timeout_us: int | None = None) -> list[Lease | None]:
        """Reads blocks whose length is not known.

        In the memory of a server of this host a block is not copied: see ``Lease``.

        Args:
            keys: their keys.
            timeout_us: see the class; also for what is asked of the leases later.

        Returns:
            By position; None for a miss.
        """
        ids, lengths = self._lease(keys, timeout_us)
        kept = [Kept(self._lib, number) if number else None for number in ids]
        return [self._read(*each) for each in zip(kept, lengths, strict=True)]

    def lengths(self, keys: Iterable[Key], *, timeout_us: int | None = None) -> list[int]:
        """Says how long blocks are, without reading them.

        Args:
            keys: their keys.
            timeout_us: see the class.

        Returns:
            By position the block's bytes, -1 for a miss.
        """
        return self._lease(keys, timeout_us, leases=False)[1]

    def _lease(
        self, keys: Iterable[Key], timeout_us: int | None, *, leases: bool = True
    ) -> tuple[list[int], list[int]]:
        """The ids of leases, 0 for a miss, and the lengths of the blocks, -1 for a miss.

        Args:
            keys: their keys.
            timeout_us: see the class.
            leases: whether leases are kept; else they have no ids.
        """
        wanted, timeout = keys_of(keys), timeout_of(timeout_us)
        if not wanted:
            self._alive()
            return [], []
        request = Request(abi.MW_STORE_EXISTS, wanted, timeout_us=timeout)
        ids = (ctypes.c_uint64 * len(wanted))() if leases else None
        lengths = (ctypes.c_int64 * len(wanted))()
        self._check(self._lib.store_lookup(self._id, request.struct, ids, lengths))
        return list(ids or ()), list(lengths)

    def _read(self, kept: Kept | None, length: int) -> Lease | None:
        if kept is None:
            return None
        view = kept.mapped(length)
        if view is not None:
            return Lease(view, kept)
        ok, data = ctypes.c_uint8(), bytearray(length)
        to = Memory("lease", data, True)
        try:
            kept.read(ok, to.address, to.num_bytes)
        finally:
            to.release()
            kept.end()
        return Lease(memoryview(data).toreadonly()) if ok.value else None

    def list(self, prefix: Key = b"", *, timeout_us: int | None = None) -> Iterator[bytes]:
        """Lists keys, in no order. Blocks that come or go meanwhile may be missed.

        Args:
            prefix: what they begin with.
            timeout_us: see the class; for each part of the list anew.

        Returns:
            The keys; those of a server that does not answer are left out.
        """
        begin = key_of(prefix, "prefix") if prefix else b""
        timeout = timeout_of(timeout_us)
        self._alive()
        return self._pages(begin, timeout)

    def _pages(self, begin: bytes, timeout_us: int) -> Iterator[bytes]:
        buffer = ctypes.create_string_buffer(abi.MW_STORE_LIST_BYTES)
        length, cursor = ctypes.c_uint64(), b""
        while True:
            texts = [
                ctypes.create_string_buffer(text, max(1, len(text))) for text in (begin, cursor)
            ]
            given = [
                abi.mw_bytes_t(ctypes.addressof(text), len(value))
                for text, value in zip(texts, (begin, cursor), strict=True)
            ]
            self._check(
                self._lib.store_list(self._id, *given, timeout_us, buffer, len(buffer), length)
            )
            cursor, *keys = _split(buffer.raw[: length.value])
            yield from keys
            if not cursor:
                return

    # ------------------------------------------------------------------- rest --

    def register(self, buffer: Any) -> None:
        """Prepares memory for ``batch_get_into`` and puts, where a carrier wants that.

        No carrier that there is wants that; the buffer is only checked.

        Args:
            buffer: a writable, contiguous buffer.
        """
        self._alive()
        Memory("buffer", buffer, True).release()

    def flush(self, timeout_us: int = 30_000_000) -> bool:
        """Waits until what was stored before is on the servers' disks.

        Args:
            timeout_us: how long to wait.

        Returns:
            False: a server did not do so, or did not answer.
        """
        timeout = timeout_of(timeout_us)
        try:
            self._check(self._lib.store_flush(self._id, min(timeout, MAX_TIMEOUT_US)))
        except UnreachableError:
            return False
        return True

    def stats(self, *, timeout_us: int | None = None) -> dict[str, Any]:
        """The counts of this client, and under "servers" what each server says of itself.

        Args:
            timeout_us: see the class; for each server.

        Returns:
            Numbers by name; None for a server that does not answer. Later versions may add entries.
        """
        status, found = read_json(self._lib.store_stats, self._id, timeout_of(timeout_us))
        self._check(status)
        return dict(found)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _split(table: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(table):
        (size,) = struct.unpack_from("<H", table, at)
        found.append(table[at + 2 : at + 2 + size])
        at += 2 + size
    return found
