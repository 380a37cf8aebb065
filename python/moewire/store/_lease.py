"""A block that was looked up."""

from __future__ import annotations


class Lease:
    """The bytes of a block; a context manager that gives them as a memoryview, and releases them.

    The block stays readable until ``release``, whatever becomes of it at its server.
    """

    __slots__ = ("_data",)

    def __init__(self, data: memoryview) -> None:
        self._data = data

    @property
    def data(self) -> memoryview:
        """The block. After ``release`` a use raises ``ValueError``."""
        return self._data

    def __len__(self) -> int:
        return len(self._data)

    def release(self) -> None:
        """Ends the lease. Idempotent."""
        self._data.release()

    def __enter__(self) -> memoryview:
        return self._data

    def __exit__(self, *exception: object) -> None:
        self.release()
