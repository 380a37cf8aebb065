"""Moewire's fabric: one per number of sockets and protection, all between the same two hosts."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from moewire.errors import MoewireError
from moewire.fabric import Fabric, Remote, Transfer

from . import native
from .cells import Cell
from .memory import Memory
from .place import Place
from .plain import Here

_PEER = 1
_SOON_US = 30_000_000
PROTECTIONS = ("digest", "encrypt")
Key = tuple[str, int]  # protection, sockets


class Fabrics:
    """One side's fabrics and their regions; ``open_`` makes them."""

    def __init__(self) -> None:
        self.fabrics: dict[Key, Fabric] = {}
        self.regions: dict[Key, Any] = {}
        self.remotes: dict[Key, Remote] = {}


@contextlib.contextmanager
def open_(place: Place, memory: Memory, sockets: Sequence[int], keys: str) -> Iterator[Fabrics]:
    """Collective: connected fabrics, as long as the body runs."""
    made, lock = Fabrics(), threading.Lock()
    with contextlib.ExitStack() as stack:
        for key in [(kind, number) for kind in PROTECTIONS for number in sockets]:
            fabric = Fabric(
                listen=f"{place.address}:0",
                keys=keys,
                encrypt=key[0] == "encrypt",
                num_sockets=key[1],
            )
            made.fabrics[key] = stack.enter_context(fabric)
        place.orders.send("fabrics")
        place.orders.recv()
        # Handshakes of the other side end with its pipe, or when the fabrics are closed.
        threading.Thread(target=_deliver, args=(place.handshakes, made), daemon=True).start()
        # Connections that last need no handshakes.
        with contextlib.ExitStack() as couriers:
            for key, fabric in made.fabrics.items():
                couriers.enter_context(fabric.couriers(_Carry(place.handshakes, lock, key)))
            for fabric in made.fabrics.values():
                fabric.connect(_PEER, _SOON_US)
            place.orders.send("connected")
            place.orders.recv()
        for key, fabric in made.fabrics.items():
            made.regions[key] = fabric.register(memory.bytes)
        place.orders.send({key: tuple(region.remote) for key, region in made.regions.items()})
        made.remotes = {key: Remote(*words) for key, words in place.orders.recv().items()}
        yield made


class _Carry:
    """Takes a fabric's handshakes to the other side."""

    def __init__(self, pipe: Any, lock: threading.Lock, key: Key) -> None:
        self._pipe, self._lock, self._key = pipe, lock, key

    def __call__(self, peer: int, handshake: bytes) -> None:
        with self._lock, contextlib.suppress(OSError):
            self._pipe.send((self._key, handshake))


def _deliver(pipe: Any, made: Fabrics) -> None:
    with contextlib.suppress(EOFError, OSError, MoewireError):
        while True:
            key, handshake = pipe.recv()
            made.fabrics[key].deliver(_PEER, handshake)


class Writes(Here):
    """Writes called from C."""

    delivers = True

    def __init__(self, library: ctypes.CDLL, made: Fabrics, protection: str) -> None:
        self.name = f"moewire, {protection}"
        self._native, self._made, self._protection = library, made, protection

    def write(self, cell: Cell) -> float:
        """Host 0's part; seconds."""
        key = self._protection, cell.connections
        fabric, region = self._made.fabrics[key], self._made.regions[key]
        ids = fabric._id.id, region._id.id
        return native.write(self._native, *ids, self._made.remotes[key], _PEER, cell)

    def serve(self, cell: Cell) -> None:
        """Host 1 is written to, and does nothing."""

    def close(self) -> None:
        """The fabrics are the caller's."""


class PythonWrites(Writes):
    """The same through ``moewire.fabric``."""

    def __init__(self, library: ctypes.CDLL, made: Fabrics, protection: str) -> None:
        super().__init__(library, made, protection)
        self.name += ", from Python"

    def write(self, cell: Cell) -> float:
        """Up to ``depth`` at a time."""
        key = self._protection, cell.connections
        fabric, region = self._made.fabrics[key], self._made.regions[key]
        remote, open_ = self._made.remotes[key], deque[Transfer]()
        begin = time.perf_counter()
        for number in range(cell.num_messages):
            if len(open_) == cell.depth:
                _finish(open_.popleft())
            at = (number % cell.depth) * cell.message_bytes
            span = {"offset": at, "remote_offset": at, "num_bytes": cell.message_bytes}
            open_.append(fabric.write(_PEER, region, remote, **span))
        while open_:
            _finish(open_.popleft())
        return time.perf_counter() - begin


def _finish(transfer: Transfer) -> None:
    with transfer:
        transfer.wait(_SOON_US)
