"""A stand-in for the client of a block store: the same methods, a dict or a folder behind them.

``Hand`` answers when a test says so. ``Client`` answers from a thread of its own, keeps its blocks
in the folder that ``servers`` names, and misbehaves as MOEWIRE_TEST_STORE says:

    fails   every request ends with an error
    hung    every request ends with an error when its time is over
    silent  no request ever ends, until the client is closed
    full    nothing is stored
    lost    it says that it has a block, and then has none
    short   blocks come back too short
    busy    it takes no request
    slow    a fifth of a second for each request
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from moewire.errors import ClosedError, WouldBlockError


class Completion(NamedTuple):
    id: int
    ok: list[bool]
    lengths: list[int]
    error: str | None


class Asked(NamedTuple):
    id: int
    kind: str
    keys: list[bytes]
    buffers: list[memoryview]


class Hand:
    """Requests lie in ``asked`` until ``answer`` ends them."""

    def __init__(self, blocks: MutableMapping[bytes, bytes] | None = None) -> None:
        self.blocks: MutableMapping[bytes, bytes] = {} if blocks is None else blocks
        self.asked: deque[Asked] = deque()
        self.all: list[Asked] = []
        self.touched: list[list[bytes]] = []
        self.room = 1 << 30  # requests that it takes before it would block
        self.closed = False
        self.registered: list[int] = []
        self._numbers = 0
        self._ended: deque[Completion] = deque()
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def register(self, buffer: memoryview) -> None:
        self.registered.append(buffer.nbytes)

    def submit_put(self, keys: Sequence[bytes], buffers: Sequence[memoryview]) -> int:
        return self._submit("put", keys, buffers)

    def submit_get(self, keys: Sequence[bytes], buffers: Sequence[memoryview]) -> int:
        return self._submit("get", keys, buffers)

    def submit_exists(self, keys: Sequence[bytes]) -> int:
        return self._submit("exists", keys, ())

    def _submit(self, kind: str, keys: Sequence[bytes], buffers: Sequence[memoryview]) -> int:
        if self.closed:
            raise ClosedError("closed")
        if len(self.asked) >= self.room:
            raise WouldBlockError("no credit")
        one = Asked(self._numbers, kind, list(keys), list(buffers))
        self._numbers += 1
        self.all.append(one)
        self.asked.append(one)
        return one.id

    def event_fd(self) -> int:
        return self._event

    def drain(self) -> list[Completion]:
        try:
            os.eventfd_read(self._event)
        except BlockingIOError:
            return []
        return [self._ended.popleft() for _ in range(len(self._ended))]

    def touch(self, keys: Sequence[bytes]) -> None:
        self.touched.append(list(keys))

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._end()

    def _end(self) -> None:
        os.close(self._event)
        self.asked.clear()  # their buffers are the caller's again
        self.all.clear()

    def answer(self, error: str | None = None) -> None:
        """Ends the oldest request, as a store would, or with an error."""
        one = self.asked.popleft()
        ok = [False] * len(one.keys) if error else [*self._done(one)]
        # None stands for a miss.
        lengths = [n if n is not None else -1 for n in ok] if one.kind == "get" else []
        self.end(Completion(one.id, [n is not None and n is not False for n in ok], lengths, error))

    def end(self, completion: Completion) -> None:
        self._ended.append(completion)
        os.eventfd_write(self._event, 1)

    def _done(self, one: Asked) -> Iterator[Any]:
        for at, key in enumerate(one.keys):
            if one.kind == "exists":
                yield key in self.blocks
            elif one.kind == "get":
                yield self._read(key, one.buffers[at])
            else:
                self.blocks.setdefault(key, bytes(one.buffers[at]))
                yield True

    def _read(self, key: bytes, buffer: memoryview) -> int | None:
        value = self.blocks.get(key)
        if value is None:
            return None
        buffer[: len(value)] = value
        return len(value)


class Folder(MutableMapping[bytes, bytes]):
    """A block per file; a namespace per folder."""

    def __init__(self, root: Path, namespace: Any) -> None:
        text = json.dumps(namespace._asdict(), sort_keys=True)
        self._root = root / hashlib.sha256(text.encode()).hexdigest()[:16]
        self._root.mkdir(parents=True, exist_ok=True)
        (self._root / "namespace.json").write_text(text)

    def __getitem__(self, key: bytes) -> bytes:
        try:
            return (self._root / key.hex()).read_bytes()
        except FileNotFoundError:
            raise KeyError(key) from None

    def __setitem__(self, key: bytes, value: bytes) -> None:
        half = self._root / f"{key.hex()}.half"
        half.write_bytes(value)
        half.rename(self._root / key.hex())

    def __delitem__(self, key: bytes) -> None:
        (self._root / key.hex()).unlink()

    def __contains__(self, key: object) -> bool:
        return isinstance(key, bytes) and (self._root / key.hex()).exists()

    def __iter__(self) -> Iterator[bytes]:
        return (bytes.fromhex(one.name) for one in self._root.iterdir() if "." not in one.name)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Client(Hand):
    """Called as moewire.store.Client."""

    def __init__(
        self,
        servers: list[str],
        *,
        namespace: Any,
        key_file: str | None = None,
        transport: str = "auto",
        timeout_us: int = 250_000,
        protection: str = "digest",
    ) -> None:
        super().__init__(Folder(Path(servers[0]), namespace))
        self._how = os.environ.get("MOEWIRE_TEST_STORE", "")
        self._seconds = timeout_us / 1e6
        if self._how == "busy":
            self.room = 0
        self._more = threading.Condition()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _submit(self, kind: str, keys: Sequence[bytes], buffers: Sequence[memoryview]) -> int:
        with self._more:
            number = super()._submit(kind, keys, buffers)
            self._more.notify()
        return number

    def close(self) -> None:
        with self._more:
            done, self.closed = self.closed, True
            self._more.notify()
        if not done:
            self._thread.join()
            self._end()

    def _serve(self) -> None:
        while True:
            with self._more:
                self._more.wait_for(lambda: self.closed or (self.asked and self._how != "silent"))
                self.all.clear()
                if self.closed:
                    return
            time.sleep({"hung": self._seconds, "slow": 0.2}.get(self._how, 0.0))
            self.answer("no answer" if self._how in ("fails", "hung") else None)

    def _done(self, one: Asked) -> Iterator[Any]:
        for answer in super()._done(one._replace(kind="exists") if self._lost(one) else one):
            if self._how == "short" and one.kind == "get" and answer is not None:
                yield answer - 1
            elif self._how == "lost":
                yield None if one.kind == "get" else one.kind == "exists"
            else:
                yield answer

    def _lost(self, one: Asked) -> bool:
        """Nothing is read or kept."""
        return one.kind in {"lost": ("get", "put"), "full": ("put",)}.get(self._how, ())
