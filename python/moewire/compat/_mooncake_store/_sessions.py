"""The calls of ``MooncakeDistributedStore`` that read blocks layer by layer."""

from __future__ import annotations

from collections.abc import Sequence

from ._base import as_many, several
from ._blocks import Blocks
from ._codes import BAD_ARGUMENT, FULL, MISSING, OK
from ._memory import BufferHandle
from ._raw import RawCalls

_Numbers = Sequence[int]


class SessionCalls(RawCalls):
    """A session has its blocks in memory of this process, whole and compared with their tags.

    So what is read of it stays right whatever becomes of the block at its server, and a session
    has no time that could pass: −707 is never returned. All sessions of a store have
    ``local_buffer_size`` together.
    """

    def __init__(self) -> None:
        super().__init__()
        self._sessions: dict[str, tuple[BufferHandle, int]] = {}  # and how often it was begun
        self._held_bytes = 0  # of their blocks, together

    def batch_get_session_start(self, keys: Sequence[str]) -> list[int]:
        """Begins to read blocks. End each block as often as it was begun.

        Args:
            keys: their keys.

        Returns:
            By position 0; −704 for a miss, −200 where ``local_buffer_size`` has no room, −600 if
            the store was closed meanwhile.
        """

        def call() -> list[int]:
            blocks = self._copying()
            return self._for_each(
                "batch_get_session_start",
                keys,
                lambda at: keys[at],
                lambda wanted, names: [
                    self._begin(name, block, blocks)
                    for name, block in zip(names, blocks.whole(wanted), strict=True)
                ],
            )

        return self._run("batch_get_session_start", call, lambda code: [code] * len(keys))

    def _begin(self, name: str, block: BufferHandle | None, blocks: Blocks) -> int:
        if block is None:
            return MISSING
        with self._lock:
            if self._blocks is not blocks:  # closed meanwhile: nothing would end the session
                return BAD_ARGUMENT
            if name in self._sessions:
                block, begun = self._sessions[name]
                self._sessions[name] = block, begun + 1
                return OK
            if self._held_bytes + len(block) > self._settings.buffer:
                return FULL
            self._sessions[name] = block, 1
            self._held_bytes += len(block)
            return OK

    def batch_get_session_end(self, keys: Sequence[str]) -> int:
        """Ends what ``batch_get_session_start`` has begun.

        Args:
            keys: their keys; those that have no session are passed by.

        Returns:
            0.
        """
        for name in several(keys):
            with self._lock:
                block, begun = self._sessions.pop(name, (BufferHandle(), 0))
                if begun > 1:
                    self._sessions[name] = block, begun - 1
                else:
                    self._held_bytes -= len(block)
        return OK

    def batch_get_into_multi_buffer_ranges(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[_Numbers],
        all_sizes: Sequence[_Numbers],
        all_src_offsets: Sequence[_Numbers],
    ) -> list[int]:
        """Copies parts of blocks that have a session.

        Args:
            keys: their keys.
            all_buffer_ptrs, all_sizes, all_src_offsets: for each key where each part goes, its
                bytes, and where in the block it begins.

        Returns:
            By position the bytes of all parts; −704 for a key without a session; −600 for a part
            that the block does not have, and then none of its parts is copied.
        """

        name = "batch_get_into_multi_buffer_ranges"

        def parts(at: int) -> list[tuple[memoryview, int]]:
            pieces = self._regions.pieces([*all_buffer_ptrs[at]], [*all_sizes[at]])
            as_many(pieces, all_src_offsets=all_src_offsets[at])
            views = [memoryview(one).cast("B") for one in pieces]
            return list(zip(views, all_src_offsets[at], strict=True))

        def call() -> list[int]:
            self._opened()
            given = {"all_buffer_ptrs": all_buffer_ptrs, "all_sizes": all_sizes}
            as_many(keys, **given, all_src_offsets=all_src_offsets)
            return self._for_each(
                name,
                keys,
                lambda at: (keys[at], parts(at)),
                lambda _, wanted: [self._copied(*one) for one in wanted],
            )

        return self._run(name, call, lambda code: [code] * len(keys))

    def _copied(self, name: str, parts: list[tuple[memoryview, int]]) -> int:
        with self._lock:
            block, begun = self._sessions.get(name, (BufferHandle(), 0))
        if not begun:
            return MISSING
        if any(not 0 <= since <= len(block) - len(view) for view, since in parts):
            return BAD_ARGUMENT
        for view, since in parts:
            view[:] = memoryview(block)[since : since + len(view)]
        return sum(len(view) for view, _ in parts)

    def _shut(self) -> None:
        super()._shut()
        self._sessions.clear()
        self._held_bytes = 0
