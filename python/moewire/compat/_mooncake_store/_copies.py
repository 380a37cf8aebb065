"""The calls of ``MooncakeDistributedStore`` that take and return buffers of Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._base import Base, as_many, named, several
from ._codes import BAD_ARGUMENT, OK, Problem
from ._config import ReplicateConfig, pin_of
from ._memory import BufferHandle


class CopyCalls(Base):
    """They fail if ``local_buffer_size`` is 0, as with Mooncake."""

    # -------------------------------------------------------------------- put --

    def put(self, key: str, value: Any, config: ReplicateConfig | None = None) -> int:
        """Puts a block.

        Args:
            key: its key.
            value: a buffer of 1 byte or more.
            config: how it is kept.

        Returns:
            0: a block is there, also if it was before and is another one; else a code.
        """
        return self._put_all("put", [key], [[value]], config)

    def put_parts(self, key: str, *args: Any, config: ReplicateConfig | None = None) -> int:
        """As ``put``, of several buffers, one behind the other."""
        return self._put_all("put_parts", [key], [args], config)

    def put_batch(
        self, keys: Sequence[str], values: Sequence[Any], config: ReplicateConfig | None = None
    ) -> int:
        """Puts several blocks.

        Args:
            keys, values, config: as for ``put``, one value for each key.

        Returns:
            0, or the code of the first that failed; the others were put.
        """
        return self._put_all("put_batch", keys, [[value] for value in values], config)

    def upsert(self, key: str, value: Any, config: ReplicateConfig | None = None) -> int:
        """Puts a block in place of the one that there is. If that has other bytes the key is a miss
        in between.

        Args:
            key, value, config: as for ``put``.

        Returns:
            0 or a code.
        """
        return self._put_all("upsert", [key], [[value]], config, replace=True)

    def upsert_parts(self, key: str, *args: Any, config: ReplicateConfig | None = None) -> int:
        """As ``upsert``, of several buffers, one behind the other."""
        return self._put_all("upsert_parts", [key], [args], config, replace=True)

    def upsert_batch(
        self, keys: Sequence[str], values: Sequence[Any], config: ReplicateConfig | None = None
    ) -> int:
        """As ``put_batch``, in place of the blocks that there are."""
        parts = [[value] for value in values]
        return self._put_all("upsert_batch", keys, parts, config, replace=True)

    def _put_all(
        self,
        name: str,
        keys: Sequence[str],
        values: Sequence[Sequence[Any]],
        config: ReplicateConfig | None,
        *,
        replace: bool = False,
    ) -> int:
        def call() -> list[int]:
            blocks, pin_s = self._copying(), pin_of(config, len(keys))
            as_many(keys, values=values)
            put = blocks.replace if replace else blocks.store
            return self._for_each(
                name, keys, lambda at: _parts(values[at]), lambda some, data: put(some, data, pin_s)
            )

        codes = self._run(name, call, lambda code: [code])
        return next((code for code in codes if code != OK), OK)

    # -------------------------------------------------------------------- get --

    def get(self, key: str) -> bytes:
        """Gets a block.

        Args:
            key: its key.

        Returns:
            Its bytes; b"" for a miss.
        """
        return self._run("get", lambda: self._copying().get(named(key)) or b"", lambda _: b"")

    def get_batch(self, keys: Sequence[str]) -> list[bytes]:
        """Gets several blocks.

        Args:
            keys: their keys.

        Returns:
            By position what ``get`` returns.
        """
        return [b"" if one is None else bytes(one) for one in self.batch_get_buffer(keys)]

    def get_buffer(self, key: str) -> BufferHandle | None:
        """Gets a block.

        Args:
            key: its key.

        Returns:
            Its bytes in memory of their own; None for a miss.
        """
        return self.batch_get_buffer([key])[0]

    def batch_get_buffer(self, keys: Sequence[str]) -> list[BufferHandle | None]:
        """Gets several blocks.

        Args:
            keys: their keys.

        Returns:
            By position what ``get_buffer`` returns.
        """

        def call() -> list[BufferHandle | None]:
            return list(self._copying().whole([named(key) for key in several(keys)]))

        return self._run("batch_get_buffer", call, lambda _: [None] * len(keys))


def _parts(values: Sequence[Any]) -> list[Any]:
    """The buffers of a block."""
    try:
        views = [memoryview(value) for value in values]
    except TypeError as error:
        raise Problem(BAD_ARGUMENT, f"value: {error}") from None
    if not sum(view.nbytes for view in views):
        raise Problem(BAD_ARGUMENT, "value: 0 bytes given; allowed: 1 or more")
    return list(views)
