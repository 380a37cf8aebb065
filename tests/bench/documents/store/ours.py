"""Moewire's store: one server in memory, and a client by TCP and one in place."""

from __future__ import annotations

import tempfile
import time
from functools import partial
from typing import Literal

from moewire.errors import MoewireError
from moewire.store import Client
from moewire.store._child import Child

from .work import EXISTS, Work, in_turn, processor_seconds, timed

_TIMEOUT_US = 10_000_000


class Server:
    """``moewire store serve`` on loopback."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="moewire-bench-")
        self._child = Child(self._folder.name, "digest")
        self.pid = self._child.pid

    def client(self, transport: Literal["tcp", "shm"]) -> Client:
        """A client whose blocks are those of that transport alone."""
        return Client(
            self._child.address,
            namespace=f"tests/bench store {transport}",
            key_file=self._child.key,
            transport=transport,
            timeout_us=_TIMEOUT_US,
        )

    def close(self) -> None:
        self._child.__exit__()
        self._folder.cleanup()


class Ours:
    """A client, which compares the tag of every block that it got."""

    version = ""

    def __init__(self, server: Server, transport: Literal["tcp", "shm"]) -> None:
        self.name = f"moewire {transport}"
        self._pid, self._client = server.pid, server.client(transport)
        self._keys: list[list[bytes]] = []

    def takes(self, work: Work) -> bool:
        return True

    def fill(self, work: Work) -> None:
        self._clear()
        self._work, self._keys = work, work.block_keys()
        for keys, blocks in zip(self._keys, work.data(), strict=True):
            if not all(self._client.batch_put(keys, blocks)):
                raise MoewireError(f"{self.name}: {work.name}: a block was not stored")
        self._into = [[bytearray(work.num_bytes) for _ in keys] for keys in self._keys]
        ask = self._exists if work.op == EXISTS else self._get
        self._call = in_turn(
            [partial(ask, keys, into) for keys, into in zip(self._keys, self._into, strict=True)]
        )

    def _get(self, keys: list[bytes], into: list[bytearray]) -> None:
        if self._client.batch_get_into(keys, into) != [self._work.num_bytes] * len(keys):
            raise MoewireError(f"{self.name}: get {self._work.name}: a block was not there")

    def _exists(self, keys: list[bytes], _: object) -> None:
        if not all(self._client.exists(keys)):
            raise MoewireError(f"{self.name}: exists: a block was not there")

    def right(self) -> bool:
        for _ in self._keys:
            self._call()
        return self._work.op == EXISTS or all(
            into == blocks for into, blocks in zip(self._into, self._work.data(), strict=True)
        )

    def run(self, seconds: float) -> list[float]:
        return timed(self._call, seconds)

    def busy(self) -> float:
        return time.process_time() + processor_seconds(self._pid)

    def _clear(self) -> None:
        for keys in self._keys:
            self._client.delete(keys)

    def close(self) -> None:
        self._client.close()
