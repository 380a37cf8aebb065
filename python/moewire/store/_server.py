"""A server of blocks in this process; ``moewire store serve`` is one."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from typing import Any, Literal

from .. import _abi as abi
from .._base.numbers import integer, refuse
from .._native import names as _names
from .._native.lib import fill, library, read_json
from ..errors import MoewireError
from ._parts import key_file_of, utf8
from ._submit import NAMES, protection_of

STORAGES = {"memory": abi.MW_STORAGE_MEMORY, "file": abi.MW_STORAGE_FILE}
DURABILITIES = {
    "group": abi.MW_DURABILITY_GROUP,
    "none": abi.MW_DURABILITY_NONE,
    "each": abi.MW_DURABILITY_EACH,
}
_LOG_BYTES = 1 << 16
_FLUSH_US = (1_000, 10_000_000)


def _group(name: str, given: int | None, grouped: bool, low: int, high: int) -> int:
    """A number that says when groups are flushed; 0 for the library's own."""
    if given is None:
        return 0
    if not grouped:
        raise refuse(name, given, 'None, unless storage is "file" and durability "group"')
    return integer(name, given, low, high)


class Server:
    """A server. A context manager that closes it.

    Args:
        listen: "address:port"; port 0 lets the system choose.
        storage: "memory", or "file": in the folder ``path``, where the next server finds the
            blocks again.
        path: the folder; with "file" only.
        capacity_bytes: for all blocks together.
        key_file: a path; only its owner may be able to read the file. None: ``MOEWIRE_KEY_FILE``.
        protection: as for ``Client``, and the same.
        metrics: "address:port" of ``GET /metrics`` over HTTP, in the Prometheus text format. It
            asks for no key: a client that reaches it sees the numbers and the names of namespaces.
            None: it is not served.
        signed: serve single signed requests too, of clients without Moewire. Their blocks are
            not encrypted; None: not with ``protection="encrypt"``.
        durability: with "file", when a block is safe from a power cut: "group", after a moment;
            "none", when the kernel likes; "each", at once, which "memory" cannot.
        flush_every_us: with "file" and "group", the longest time between two flushes, 1 ms to 10 s.
            None: 20 ms. A flush that fails is tried again as often.
        flush_bytes: the same, how many bytes of blocks are flushed sooner. None: 64 MiB.

    Raises:
        InvalidArgument: an argument is wrong, or there is no key.
        BusyError: another server has the folder.
        MetadataError: the folder has something else in it, or another version.
        SystemCallError: the address or the folder cannot be used.
    """

    def __init__(
        self,
        listen: str = "127.0.0.1:0",
        *,
        storage: Literal["memory", "file"] = "memory",
        path: str | os.PathLike[str] | None = None,
        capacity_bytes: int = 1 << 30,
        key_file: str | os.PathLike[str] | None = None,
        protection: Literal["digest", "encrypt"] = "digest",
        durability: Literal["group", "none", "each"] = "group",
        flush_every_us: int | None = None,
        flush_bytes: int | None = None,
        metrics: str | None = None,
        signed: bool | None = None,
    ) -> None:
        self._closed = True  # until it is open
        if storage not in STORAGES:
            raise refuse("storage", repr(storage), ", ".join(STORAGES))
        if durability not in DURABILITIES:
            raise refuse("durability", repr(durability), ", ".join(DURABILITIES))
        if storage == "memory" and durability == "each":
            raise refuse("durability", "'each'", 'group or none, unless storage is "file"')
        if (path is None) != (storage == "memory"):
            raise refuse("path", repr(path), 'a folder with storage "file" alone')
        if not isinstance(listen, str):
            raise refuse("listen", f"a {type(listen).__name__}", "address:port")
        if metrics is not None and (not isinstance(metrics, str) or not metrics):
            raise refuse("metrics", repr(metrics), "address:port, or None")
        grouped = storage == "file" and durability == "group"
        config = abi.mw_store_server_config_t(
            size=ctypes.sizeof(abi.mw_store_server_config_t),
            key_source=abi.MW_KEYS_FILE,
            storage=STORAGES[storage],
            durability=DURABILITIES[durability],
            protection=protection_of(protection),
            no_singles=not (protection == "digest" if signed is None else signed),
            capacity_bytes=integer("capacity_bytes", capacity_bytes, 1, (1 << 63) - 1),
            flush_every_us=_group("flush_every_us", flush_every_us, grouped, *_FLUSH_US),
            flush_bytes=_group("flush_bytes", flush_bytes, grouped, 1, (1 << 63) - 1),
        )
        given = {"listen": utf8("listen", listen), "keys": key_file_of(key_file)}
        if path is not None:
            given["path"] = os.fsencode(path)
        if metrics is not None:
            given["metrics"] = utf8("metrics", metrics)
        texts = fill(config, given)  # alive during the call
        self._lib = library()
        self._id = abi.mw_store_server_t()
        _names.check(self._lib, self._lib.store_serve(config, self._id), NAMES)
        del texts
        self._closed = False

    @property
    def address(self) -> str:
        """Where clients reach it: "address:port"."""
        return self._text(self._lib.store_server_address, 256)

    @property
    def metrics_address(self) -> str:
        """Where ``/metrics`` is: "address:port"; "" if it is not served."""
        return self._text(self._lib.store_server_metrics, 256)

    def _text(self, function: Any, room: int) -> str:
        buffer, length = ctypes.create_string_buffer(room), ctypes.c_uint64()
        self._lib.check(function(self._id, buffer, room, length))
        return buffer.raw[: length.value].decode("utf-8", "replace")

    def stats(self) -> dict[str, Any]:
        """The counts of the server and of its storage.

        Returns:
            Numbers by name; later versions may add entries.
        """
        status, found = read_json(self._lib.store_server_stats, self._id)
        self._lib.check(status)
        return dict(found)

    def log(self) -> list[str]:
        """Takes the lines of log since the last call.

        Returns:
            One line for each event that an operator must know of.
        """
        return self._text(self._lib.store_server_log, _LOG_BYTES).splitlines()

    def reload(self) -> None:
        """Reads the key file again.

        Raises:
            InvalidArgument: it cannot be read, or has no keys; the keys are as they were.
        """
        _names.check(self._lib, self._lib.store_server_reload(self._id), NAMES)

    def drain(self, timeout_us: int = 10_000_000) -> None:
        """Takes no more requests, lets those that run end, and closes the storage.

        ``stats``, ``log`` and ``/metrics`` stay until ``close``; other threads may call them
        meanwhile. Idempotent.

        Args:
            timeout_us: how long they may run. The storage then has 30 s.

        Raises:
            DeadlineError: its disk does not answer. What was not flushed may be lost, and the
                folder stays in use as long as this process lives.
        """
        timeout = integer("timeout_us", timeout_us, 0, (1 << 62))
        if not self._closed and not self._lib.forked:
            self._lib.check(self._lib.store_server_drain(self._id, timeout))

    def close(self, timeout_us: int = 10_000_000) -> None:
        """Drains the server, unless that was done, and ends it. Idempotent.

        Args:
            timeout_us: as for ``drain``.

        Raises:
            DeadlineError: as ``drain``; the server is closed all the same.
        """
        timeout = integer("timeout_us", timeout_us, 0, (1 << 62))
        if self._closed or self._lib.forked:
            return
        self._closed = True
        self._lib.check(self._lib.store_server_close(self._id, timeout))

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            with suppress(MoewireError):
                self.close(1_000_000)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
