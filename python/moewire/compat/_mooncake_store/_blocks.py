"""A client of the block store for calls of any number of keys, which return codes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from ... import _abi as abi
from ...store import Client
from ._codes import BAD_ARGUMENT, FULL, MISSING, NO_SERVER, OK, log, warn_once
from ._memory import BufferHandle

_BATCH_BYTES = 64 << 20  # of the blocks of one put
_BLOCK_BYTES = 256 << 20
_WHOLE = 16  # blocks at a time for which there is memory

T = TypeVar("T")


class Blocks(Client):
    """As ``Client``, for any number of keys. Safe for use by several threads."""

    def store(
        self, keys: Sequence[bytes], blocks: Sequence[list[Any]], pin_s: float | None
    ) -> list[int]:
        """Puts a chain.

        Args:
            keys: their keys.
            blocks: the buffers of each.
            pin_s: for how long they are pinned; None: their pins stay as they are.

        Returns:
            By position 0 if a block is there, also another one that was there before; else why not.
        """
        return self._in_batches(self._store, keys, blocks, pin_s)

    def replace(
        self, keys: Sequence[bytes], blocks: Sequence[list[Any]], pin_s: float | None
    ) -> list[int]:
        """As ``store``, in place of the blocks that there are.

        A block of the same bytes stays all the while. Another one is deleted before the new one is
        put, because a key with a block takes no other one: in between, and after a put that fails,
        it is a miss.
        """
        return self._in_batches(self._replace, keys, blocks, pin_s)

    def _in_batches(
        self,
        put: Callable[[list[bytes], Sequence[list[Any]], bytes | None], list[bool]],
        keys: Sequence[bytes],
        blocks: Sequence[list[Any]],
        pin_s: float | None,
    ) -> list[int]:
        """Puts a chain, as many blocks at a time as one call takes."""
        codes: list[int] = []
        parent = None
        for first, end in _batches([_bytes_of(block) for block in blocks]):
            some = list(keys[first:end])
            codes += self._codes(some, put(some, blocks[first:end], parent))
            parent = some[-1]
        return codes if pin_s is None else self._pinned(keys, codes, pin_s)

    def _store(
        self, keys: list[bytes], blocks: Sequence[list[Any]], parent: bytes | None
    ) -> list[bool]:
        """Which blocks were put, or were there before."""
        # A block that no store takes is a batch of its own, and fares as one that no segment holds.
        huge = _bytes_of(blocks[0]) > _BLOCK_BYTES
        return [False] if huge else self.batch_put(keys, blocks, parent=parent)

    def _replace(
        self, keys: list[bytes], blocks: Sequence[list[Any]], parent: bytes | None
    ) -> list[bool]:
        stored = self._store(keys, blocks, parent)
        if all(stored):
            return stored
        there = self.exists(keys)
        others = [at for at, put in enumerate(stored) if there[at] and not put]
        self.remove([keys[at] for at in others])
        for at in others:  # one by one: a call would take each for the parent of the next one
            before = keys[at - 1] if at else parent
            (stored[at],) = self._store([keys[at]], [blocks[at]], before)
        return stored

    def _codes(self, keys: list[bytes], stored: list[bool]) -> list[int]:
        if all(stored):
            return [OK] * len(keys)
        there = self.exists(keys)
        if any(found and not put for put, found in zip(stored, there, strict=True)):
            warn_once("a put had other bytes than the block that has the key; that one stays")
        why = OK if all(map(max, stored, there)) else self._why()
        return [OK if put or found else why for put, found in zip(stored, there, strict=True)]

    def _why(self) -> int:
        """Why a put failed where no block was."""
        said = self.stats()
        if said["servers_up"] < len(said["servers"]):
            log.error("mooncake.store: a put failed: %s", said.get("why_not") or "a server is gone")
            return NO_SERVER
        log.error("mooncake.store: a put failed: the store is full, or a segment is too small")
        return FULL

    def _pinned(self, keys: Sequence[bytes], codes: list[int], pin_s: float) -> list[int]:
        """The codes, where a block that is there but cannot be pinned counts as no room."""
        held = self.each(keys, lambda some: self.pin(some, pin_s))
        if pin_s == 0:
            return codes
        return [code or (OK if ok else FULL) for code, ok in zip(codes, held, strict=True)]

    def load(self, keys: Sequence[bytes], buffers: Sequence[list[Any]]) -> list[int]:
        """Gets blocks.

        Args:
            keys: their keys.
            buffers: the memory of each.

        Returns:
            By position the block's bytes, −704 for a miss, −600 where the memory is too small.
        """
        found: list[int] = []
        for at in range(0, len(keys), abi.MW_STORE_MAX_KEYS):
            end = at + abi.MW_STORE_MAX_KEYS
            outcome = self._get_into(keys[at:end], buffers[at:end], None)
            for ok, length in zip(outcome.ok, outcome.lengths, strict=True):
                found.append(length if ok else MISSING if length < 0 else BAD_ARGUMENT)
        return found

    def whole(self, keys: Sequence[bytes]) -> Iterator[BufferHandle | None]:
        """Gets blocks whose length is not known, a few at a time.

        Args:
            keys: their keys.

        Returns:
            By position; None for a miss.
        """
        for at in range(0, len(keys), _WHOLE):
            some = keys[at : at + _WHOLE]
            rooms = [BufferHandle(max(length, 0)) for length in self.lengths(some)]
            found = self.load(some, [[room] for room in rooms])
            for room, length in zip(rooms, found, strict=True):
                yield room if length == len(room) else None

    def remove(self, keys: Sequence[bytes]) -> list[bool]:
        """Deletes blocks.

        Args:
            keys: their keys.

        Returns:
            Which there were, by position.
        """
        return self.each(keys, lambda some: self._ask(abi.MW_STORE_DELETE, some, None))

    def remove_where(self, wanted: Callable[[bytes], bool]) -> int:
        """Deletes all blocks of the namespace whose keys are wanted.

        Args:
            wanted: says so of a key.

        Returns:
            How many there were.
        """
        keys = [key for key in self.list() if wanted(key)]  # a list misses keys while some go
        return sum(self.remove(keys))

    def each(self, keys: Sequence[bytes], call: Callable[[Sequence[bytes]], list[T]]) -> list[T]:
        """Makes a call for as many keys at a time as it takes.

        Args:
            keys: the keys.
            call: answers by position.

        Returns:
            All its answers.
        """
        size = abi.MW_STORE_MAX_KEYS
        return [one for at in range(0, len(keys), size) for one in call(keys[at : at + size])]


def _bytes_of(block: list[Any]) -> int:
    return sum(memoryview(part).nbytes for part in block)


def _batches(sizes: list[int]) -> Iterator[tuple[int, int]]:
    """Where each batch begins and ends, so that a put takes it."""
    first = total = 0
    for at, size in enumerate(sizes):
        full = total + size > _BATCH_BYTES or at - first == abi.MW_STORE_MAX_KEYS
        if full and at > first:
            yield first, at
            first, total = at, 0
        total += size
    if first < len(sizes):
        yield first, len(sizes)
