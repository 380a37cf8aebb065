"""A process of the peer Mooncake: ``memory`` has the memory of the store, ``client`` uses it.

It runs where Moewire is not imported. The client answers a line to each line of its input.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import mmap
import os
import random
import sys
import time
from collections.abc import Callable
from itertools import cycle
from typing import Any

_SEGMENT_BYTES, _BUFFER_BYTES, _OWN_BYTES = 1 << 30, 256 << 20, 256 << 20


def _check(status: int, what: str) -> None:
    if status != 0:
        raise RuntimeError(f"{what} returned {status}")


def _opened(role: str, master: str) -> Any:
    store = importlib.import_module("mooncake.store").MooncakeDistributedStore()
    segment = _SEGMENT_BYTES if role == "memory" else 0
    where = ("127.0.0.1", "P2PHANDSHAKE", segment, _BUFFER_BYTES)
    end = time.monotonic() + 10  # the master may not listen yet
    while store.setup(*where, "tcp", "", master) != 0:
        if time.monotonic() > end:
            raise RuntimeError("setup failed")
        time.sleep(0.1)
    return store


class _Client:
    """Blocks come from the first half of its memory and go into the second."""

    def __init__(self, store: Any) -> None:
        self._store, self._memory = store, mmap.mmap(-1, 2 * _OWN_BYTES)
        self._at = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        _check(store.register_buffer(self._at, 2 * _OWN_BYTES), "register_buffer")
        self._keys: list[list[str]] = []

    def fill(self, op: str, keys: list[list[str]], num_bytes: int) -> bool:
        for old in self._keys:
            for key in old:
                _check(self._store.remove(key, True), "remove")
        self._gets = op == "get"
        self._keys, per_set = keys, num_bytes * len(keys[0])
        self._used = per_set * len(keys)
        self._memory[: self._used] = random.Random(per_set).randbytes(self._used)
        self._calls = []
        for number, group in enumerate(keys):
            first = self._at + number * per_set
            places = [first + block * num_bytes for block in range(len(group))]
            sizes = [num_bytes] * len(group)
            self._put(group, places, sizes)
            into = [place + _OWN_BYTES for place in places]
            self._calls.append(self._call(op, group, into, sizes))
        self._following = cycle(self._calls)
        return True

    def _put(self, keys: list[str], places: list[int], sizes: list[int]) -> None:
        for status in self._store.batch_put_from(keys, places, sizes):
            _check(status, "batch_put_from")

    def _call(
        self, op: str, keys: list[str], into: list[int], sizes: list[int]
    ) -> Callable[[], bool]:
        store = self._store
        if op == "exists":
            there = [1] * len(keys)
            return lambda: bool(store.batch_is_exist(keys) == there)
        if len(keys) == 1:
            return lambda: bool(store.get_into(keys[0], into[0], sizes[0]) == sizes[0])
        return lambda: bool(store.batch_get_into(keys, into, sizes) == sizes)

    def right(self) -> bool:
        found = [call() for call in self._calls]
        got = self._memory[_OWN_BYTES : _OWN_BYTES + self._used]
        return all(found) and (not self._gets or got == self._memory[: self._used])

    def run(self, seconds: float) -> list[float]:
        times: list[float] = []
        end = time.perf_counter() + seconds
        while not times or time.perf_counter() < end:
            call = next(self._following)
            begun = time.perf_counter()
            found = call()
            times.append(time.perf_counter() - begun)
            if not found:
                raise RuntimeError("a block was not there")
        return times


def main(role: str, master: str) -> None:
    """Answers true once it is ready, and obeys until its input ends."""
    # What the library prints goes elsewhere.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(answer: object) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    try:
        store = _opened(role, master)
        client = _Client(store) if role == "client" else None
        say(True)
        for line in sys.stdin:
            word, *arguments = json.loads(line)
            say(getattr(client, word)(*arguments))
    except Exception as error:
        say(f"{type(error).__name__}: {error}")
    # Not through the destructors of a library that has threads.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
