"""Plain copies over sockets, and gloo: what there is without Moewire."""

from __future__ import annotations

import ctypes
import os
import resource
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from .cells import FLOORS, Cell
from .memory import Memory
from .native import Stream
from .network import ADDRESSES
from .place import Place

_SECONDS = 30


def connected(place: Place, count: int) -> list[socket.socket]:
    """Collective: blocking sockets from host 0 to host 1, in the same order on both."""
    if place.host == 1:
        with socket.create_server((ADDRESSES[1], 0), backlog=count) as listener:
            listener.settimeout(_SECONDS)
            place.orders.send(listener.getsockname()[1])
            found = [listener.accept()[0] for _ in range(count)]
    else:
        target = (ADDRESSES[1], place.orders.recv())
        found = [socket.create_connection(target, timeout=_SECONDS) for _ in range(count)]
    for one in found:
        prepare(one)
    return found


def prepare(one: socket.socket) -> None:
    """Blocking, but not for ever; small answers go at once; buffers as the kernel adapts them."""
    one.setblocking(True)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    limit = struct.pack("ll", _SECONDS, 0)
    for which in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        one.setsockopt(socket.SOL_SOCKET, which, limit)


class Here:
    """What works in this process."""

    def processor_seconds(self) -> float:
        """Used until now by this process, what the kernel does for it included."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime


class Copy(Here):
    """One of the ways in ``cells.FLOORS``."""

    def __init__(
        self,
        native: ctypes.CDLL,
        sockets: Sequence[socket.socket],
        memory: Memory,
        variant: int,
    ) -> None:
        self.name = FLOORS[variant]
        self.delivers = variant != 2
        self._native, self._memory, self._variant = native, memory, variant
        self._sockets = sockets

    def _stream(self, cell: Cell) -> Stream:
        files = [one.fileno() for one in self._sockets[: cell.connections]]
        return Stream(self._native, files, self._memory.address, cell, self._variant)

    def write(self, cell: Cell) -> float:
        """Host 0's part; seconds."""
        return self._stream(cell).send()

    def serve(self, cell: Cell) -> None:
        """Host 1's part."""
        self._stream(cell).receive()

    def close(self) -> None:
        """Idempotent, and the same for the variants that share the sockets."""
        for one in self._sockets:
            one.close()


class Gloo(Here):
    """``isend`` and ``irecv``: each group has one connection, messages take turns."""

    name = "gloo"
    delivers = True

    def __init__(self, place: Place, memory: Memory, num_groups: int) -> None:
        store = dist.FileStore(os.path.join(place.folder, "gloo"), 2)
        dist.init_process_group("gloo", store=store, rank=place.host, world_size=2)
        self._groups: list[Any] = [dist.new_group([0, 1]) for _ in range(num_groups)]
        self._memory = torch.from_numpy(memory.bytes)
        self._answer = torch.zeros(1, dtype=torch.uint8)

    def _messages(self, cell: Cell) -> list[torch.Tensor]:
        return list(self._memory[: cell.depth * cell.message_bytes].split(cell.message_bytes))

    def _run(self, cell: Cell, begin: Any, peer: int) -> None:
        """Up to ``depth`` at a time."""
        messages, open_ = self._messages(cell), deque[Any]()
        for number in range(cell.num_messages):
            if len(open_) == cell.depth:
                open_.popleft().wait()
            group = self._groups[number % cell.connections]
            open_.append(begin(messages[number % cell.depth], peer, group=group))
        while open_:
            open_.popleft().wait()

    def write(self, cell: Cell) -> float:
        """Host 0's part; seconds until the answer."""
        begin = time.perf_counter()
        if cell.depth > 1:
            self._run(cell, dist.isend, 1)
            dist.recv(self._answer, 1, group=self._groups[0])
            return time.perf_counter() - begin
        (message,) = self._messages(cell)
        for _ in range(cell.num_messages):
            dist.send(message, 1, group=self._groups[0])
            dist.recv(self._answer, 1, group=self._groups[0])
        return time.perf_counter() - begin

    def serve(self, cell: Cell) -> None:
        """Host 1's part."""
        if cell.depth > 1:
            self._run(cell, dist.irecv, 0)
            dist.send(self._answer, 0, group=self._groups[0])
            return
        (message,) = self._messages(cell)
        for _ in range(cell.num_messages):
            dist.recv(message, 0, group=self._groups[0])
            dist.send(self._answer, 0, group=self._groups[0])

    def close(self) -> None:
        """Ends all groups."""
        dist.destroy_process_group()
