"""``native/wire.c``: plain copies over sockets, and Moewire's transfers as C calls them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from ctypes import Structure, addressof, byref, c_int32, c_int64, c_uint32, c_uint64, c_void_p, cast
from typing import Any, ClassVar

from moewire import _abi as abi
from moewire._abi import MW_ERR_WOULD_BLOCK
from moewire._native.lib import library
from moewire.bench import compiler
from moewire.errors import MoewireError, from_status

from .. import SOURCES
from .cells import Cell

_WAIT_US = 20_000_000
PIECE_BYTES = 128 * 1024


class _Stream(Structure):
    _fields_: ClassVar[list[tuple[str, Any]]] = [
        ("fds", c_void_p),
        ("num_fds", c_int64),
        ("memory", c_void_p),
        ("message_bytes", c_int64),
        ("slots", c_int64),
        ("count", c_int64),
        ("piece_bytes", c_int64),
        ("hot", c_int64),
        ("each", c_int64),
    ]


class _Transfers(Structure):
    _fields_: ClassVar[list[tuple[str, Any]]] = [
        *((name, c_void_p) for name in ("post", "wait", "close")),
        ("fabric", c_uint64),
        ("args", c_void_p),
        *((name, c_int64) for name in ("slots", "count", "depth")),
        ("until", c_uint32),
        ("would_block", c_int32),
        ("timeout_us", c_int64),
        ("status", c_int32),
    ]


class _Exchange(Structure):
    _fields_: ClassVar[list[tuple[str, Any]]] = [
        ("fds", c_void_p),
        ("num_fds", c_int64),
        ("send_bytes", c_void_p),
        ("recv_bytes", c_void_p),
        ("from_", c_void_p),
        ("to", c_void_p),
    ]


def load() -> ctypes.CDLL:
    """The library, compiled at its first use; raises ``CompileError``."""
    path = compiler.library(SOURCES / "wire.c", "-pthread")
    native = ctypes.CDLL(str(path))
    for name in ("wire_send", "wire_transfers"):
        function = getattr(native, name)
        function.restype, function.argtypes = c_int64, [c_void_p]
    native.wire_recv.restype, native.wire_recv.argtypes = c_int32, [c_void_p]
    native.wire_exchange.restype, native.wire_exchange.argtypes = c_int32, [c_void_p, c_int32]
    return native


class Stream:
    """Messages of a cell over sockets, one way."""

    def __init__(
        self, native: ctypes.CDLL, sockets: Sequence[int], memory: int, cell: Cell, variant: int
    ) -> None:
        """``variant``: as in ``cells.FLOORS``. ``memory`` has room for ``cell.depth`` messages."""
        self._native = native
        self._fds = (c_int32 * len(sockets))(*sockets)
        piece = cell.message_bytes if variant == 0 else min(PIECE_BYTES, cell.message_bytes)
        self._stream = _Stream(
            fds=addressof(self._fds),
            num_fds=len(sockets),
            memory=memory,
            message_bytes=cell.message_bytes,
            slots=cell.depth,
            count=cell.num_messages,
            piece_bytes=piece,
            hot=variant == 2,
            each=cell.depth == 1,
        )

    def send(self) -> float:
        """Seconds until the last message was answered."""
        nanoseconds: int = self._native.wire_send(byref(self._stream))
        _check("sending", -min(0, nanoseconds))
        return nanoseconds * 1e-9

    def receive(self) -> None:
        """Answers."""
        _check("receiving", self._native.wire_recv(byref(self._stream)))


def write(
    native: ctypes.CDLL, fabric: int, region: int, remote: Sequence[int], peer: int, cell: Cell
) -> float:
    """A cell's writes through the C ABI; seconds until the last one has ended."""
    lib: Any = library()
    args = abi.mw_transfer_args_t(
        size=ctypes.sizeof(abi.mw_transfer_args_t),
        kind=abi.MW_TRANSFER_WRITE,
        peer=peer,
        region=abi.mw_region_t(region),
        num_bytes=cell.message_bytes,
        remote_address=remote[0],
        remote_num_bytes=remote[1],
        remote_key=remote[2],
    )
    functions = (lib.transfer_post, lib.transfer_wait, lib.transfer_close)
    state = _Transfers(
        *(cast(function, c_void_p).value for function in functions),
        fabric,
        addressof(args),
        cell.depth,
        cell.num_messages,
        cell.depth,
        abi.MW_UNTIL_RELEASED,
        MW_ERR_WOULD_BLOCK,
        _WAIT_US,
    )
    nanoseconds: int = native.wire_transfers(byref(state))
    if state.status > 0:
        raise MoewireError(f"a write did not end within {_WAIT_US} us")
    if state.status < 0:
        raise from_status(state.status, "a write that was measured failed")
    return nanoseconds * 1e-9


class Exchange:
    """So many bytes to and from each of several peers, both ways at once."""

    def __init__(
        self, native: ctypes.CDLL, sockets: Sequence[int], sent: Sequence[int], back: Sequence[int]
    ) -> None:
        self._native = native
        self._fds = (c_int32 * len(sockets))(*sockets)
        self._sent, self._back = ((c_int64 * len(sockets))(*sizes) for sizes in (sent, back))
        self._memory = [bytearray(max(1, sum(sizes))) for sizes in (sent, back)]
        held = [(ctypes.c_char * len(part)).from_buffer(part) for part in self._memory]
        self._exchange = _Exchange(
            addressof(self._fds),
            len(sockets),
            addressof(self._sent),
            addressof(self._back),
            *(addressof(part) for part in held),
        )

    def run(self) -> None:
        """Blocks until everything is there."""
        _check("exchanging", self._native.wire_exchange(byref(self._exchange), 20_000))


def _check(what: str, error: int) -> None:
    if error:
        raise MoewireError(f"{what} over plain sockets: {os.strerror(error)}")
