"""The calls of ``MooncakeDistributedStore`` on memory that its callers name by address."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._base import Base, as_many
from ._codes import BAD_ARGUMENT, MISSING, OK, Problem
from ._config import ReplicateConfig, pin_of
from ._memory import piece

_Numbers = Sequence[int]


class RawCalls(Base):
    """Reads and writes the memory itself. It must be the host's, and stay there meanwhile.

    A get's memory must be writable. Null, sizes below 1, and memory that the CPU cannot read are
    −600, for the block that they are of.
    """

    def register_buffer(self, buffer_ptr: int, size: int) -> int:
        """Says that memory will be used. Not needed but for ``get_into_ranges``.

        Args:
            buffer_ptr, size: the memory.

        Returns:
            0, or −600.
        """

        def call() -> int:
            self._opened()
            self._regions.add(buffer_ptr, size)
            return OK

        return self._run("register_buffer", call, int)

    def unregister_buffer(self, buffer_ptr: int) -> int:
        """Ends ``register_buffer``.

        Args:
            buffer_ptr: as it was registered.

        Returns:
            0, or −600 if it was not.
        """

        def call() -> int:
            if not self._regions.remove(buffer_ptr):
                raise Problem(BAD_ARGUMENT, f"buffer_ptr: {buffer_ptr} was not registered")
            return OK

        return self._run("unregister_buffer", call, int)

    # -------------------------------------------------------------------- put --

    def put_from(
        self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig | None = None
    ) -> int:
        """Puts one block; as ``batch_put_from``."""
        return self.batch_put_from([key], [buffer_ptr], [size], config)[0]

    def batch_put_from(
        self,
        keys: Sequence[str],
        buffer_ptrs: _Numbers,
        sizes: _Numbers,
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        """Puts blocks, the beginning of a prompt first.

        Args:
            keys: their keys.
            buffer_ptrs, sizes: the memory of each.
            config: how they are kept.

        Returns:
            By position 0: a block is there, also if it was before and is another one; else a code.
        """
        return self._put("batch_put_from", keys, _one_each(buffer_ptrs), _one_each(sizes), config)

    def batch_put_from_multi_buffers(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[_Numbers],
        all_sizes: Sequence[_Numbers],
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        """As ``batch_put_from``, of blocks that lie in several pieces."""
        name = "batch_put_from_multi_buffers"
        return self._put(name, keys, all_buffer_ptrs, all_sizes, config)

    def _put(
        self,
        name: str,
        keys: Sequence[str],
        ptrs: Sequence[_Numbers],
        sizes: Sequence[_Numbers],
        config: ReplicateConfig | None,
    ) -> list[int]:
        def call() -> list[int]:
            blocks, pin_s = self._opened(), pin_of(config, len(keys))
            return self._pieces(
                name, keys, ptrs, sizes, lambda some, data: blocks.store(some, data, pin_s)
            )

        return self._run(name, call, lambda code: [code] * len(keys))

    def _pieces(
        self,
        name: str,
        keys: Sequence[str],
        ptrs: Sequence[_Numbers],
        sizes: Sequence[_Numbers],
        call: Any,
    ) -> list[int]:
        as_many(keys, buffer_ptrs=ptrs, sizes=sizes)

        def memory(at: int) -> list[Any]:
            return self._regions.pieces([*ptrs[at]], [*sizes[at]])

        return self._for_each(name, keys, memory, call)

    # ----------------------------------------------------------------- upsert --

    def upsert_from(
        self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig | None = None
    ) -> int:
        """Replaces one block; as ``batch_upsert_from``."""
        return self.batch_upsert_from([key], [buffer_ptr], [size], config)[0]

    def batch_upsert_from(
        self,
        keys: Sequence[str],
        buffer_ptrs: _Numbers,
        sizes: _Numbers,
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        """Puts blocks in place of those that there are. Keys whose blocks have other bytes are
        misses in between.

        Args:
            keys, buffer_ptrs, sizes, config: as for ``batch_put_from``.

        Returns:
            By position 0 or a code.
        """
        name = "batch_upsert_from"

        def call() -> list[int]:
            blocks, pin_s = self._opened(), pin_of(config, len(keys))
            ptrs, lengths = _one_each(buffer_ptrs), _one_each(sizes)
            return self._pieces(
                name, keys, ptrs, lengths, lambda some, data: blocks.replace(some, data, pin_s)
            )

        return self._run(name, call, lambda code: [code] * len(keys))

    # -------------------------------------------------------------------- get --

    def get_into(self, key: str, buffer_ptr: int, size: int) -> int:
        """Gets one block; as ``batch_get_into``."""
        return self.batch_get_into([key], [buffer_ptr], [size])[0]

    def batch_get_into(
        self, keys: Sequence[str], buffer_ptrs: _Numbers, sizes: _Numbers
    ) -> list[int]:
        """Gets blocks.

        Args:
            keys: their keys.
            buffer_ptrs, sizes: the memory for each.

        Returns:
            By position the block's bytes, −704 for a miss, −600 where the memory is too small.
        """
        ptrs, lengths = _one_each(buffer_ptrs), _one_each(sizes)
        return self._get("batch_get_into", keys, ptrs, lengths)

    def batch_get_into_multi_buffers(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[_Numbers],
        all_sizes: Sequence[_Numbers],
        prefer_alloc_in_same_node: bool = False,
    ) -> list[int]:
        """As ``batch_get_into``, into several pieces for each block, which are filled in order."""
        return self._get("batch_get_into_multi_buffers", keys, all_buffer_ptrs, all_sizes)

    def _get(
        self,
        name: str,
        keys: Sequence[str],
        ptrs: Sequence[_Numbers],
        sizes: Sequence[_Numbers],
    ) -> list[int]:
        def call() -> list[int]:
            return self._pieces(name, keys, ptrs, sizes, self._opened().load)

        return self._run(name, call, lambda code: [code] * len(keys))

    def get_into_ranges(
        self,
        buffer_ptrs: _Numbers,
        all_keys: Sequence[Sequence[str]],
        all_dst_offsets: Sequence[Sequence[_Numbers]],
        all_src_offsets: Sequence[Sequence[_Numbers]],
        all_sizes: Sequence[Sequence[_Numbers]],
    ) -> list[list[list[int]]]:
        """Gets parts of blocks. Each block comes over the network whole.

        Args:
            buffer_ptrs: registered memory.
            all_keys: for each memory the keys whose parts go there.
            all_dst_offsets, all_src_offsets, all_sizes: for each memory and key where each part
                goes, where in the block it begins, and its bytes.

        Returns:
            For each memory, key and part its bytes, or a code.
        """
        result = [[[BAD_ARGUMENT] * len(parts) for parts in one] for one in all_dst_offsets]
        given = (all_dst_offsets, all_src_offsets, all_sizes)

        def call() -> list[list[list[int]]]:
            blocks = self._opened()
            as_many(buffer_ptrs, all_keys=all_keys, all_src_offsets=given[1], all_sizes=given[2])
            as_many(buffer_ptrs, all_dst_offsets=given[0])
            wanted = _Wanted(buffer_ptrs, all_keys, given)
            for at, block in enumerate(blocks.whole(wanted.keys)):
                data = None if block is None else memoryview(block)
                for memory, key in wanted.places[at]:
                    parts = [one[memory][key] for one in given]
                    room = self._regions.left(buffer_ptrs[memory])
                    result[memory][key] = _copy(buffer_ptrs[memory], room, data, parts)
            return result

        return self._run("get_into_ranges", call, lambda code: result)


class _Wanted:
    """Which blocks are needed, and for which memory and key of a call."""

    def __init__(
        self,
        buffer_ptrs: _Numbers,
        all_keys: Sequence[Sequence[str]],
        given: Sequence[Sequence[Sequence[_Numbers]]],
    ) -> None:
        found: dict[bytes, list[tuple[int, int]]] = {}
        for memory in range(len(buffer_ptrs)):
            if all(len(one[memory]) == len(all_keys[memory]) for one in given):
                for at, key in enumerate(all_keys[memory]):
                    found.setdefault(key.encode(), []).append((memory, at))
        self.keys = [key for key in found if 1 <= len(key) <= 512]
        self.places = [found[key] for key in self.keys]


def _copy(address: int, room: int, data: memoryview | None, parts: Sequence[_Numbers]) -> list[int]:
    """Copies parts of a block, if all three lists say the same number of them."""
    to, since, sizes = parts
    if not len(to) == len(since) == len(sizes):
        return [BAD_ARGUMENT] * len(to)
    return [_copy_one(address, room, data, *one) for one in zip(to, since, sizes, strict=True)]


def _copy_one(
    address: int, room: int, data: memoryview | None, to: int, since: int, size: int
) -> int:
    if data is None:
        return MISSING
    if min(to, since) < 0 or size < 1 or to + size > room or since + size > len(data):
        return BAD_ARGUMENT
    memoryview(piece(address + to, size)).cast("B")[:] = data[since : since + size]
    return size


def _one_each(numbers: _Numbers) -> list[list[int]]:
    return [[number] for number in numbers]
