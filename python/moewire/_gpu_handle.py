"""The handles of dispatches on CUDA, which are released when a stream comes to it."""

from __future__ import annotations

from typing import Any

from . import _abi as abi
from ._flat_results import FlatHandle
from .errors import UnsupportedError
from .handle import Handle, Held


class OnStream(Held):
    """``release()`` takes effect behind what the current stream has so far.

    A handle that is dropped unused is released on the stream of its dispatch.
    """

    _stream: Any = None
    _captured = False

    @property
    def peers_have_more(self) -> bool:
        """Not on CUDA yet: ``dispatch`` has no ``more`` there."""
        raise UnsupportedError("peers_have_more: not on CUDA yet")

    def release(self) -> None:
        """Tells every rank that this one is done with the operation. Idempotent."""
        gpu = self._runtime.gpu
        if gpu is not None and not self._released:
            self._stream = gpu.place.stream()
        super().release()

    def _release(self) -> int:
        gpu = self._runtime.gpu
        if self._released or gpu is None or self._runtime.closed or self._runtime.lib.forked:
            return abi.MW_OK
        self._released = True
        if self._captured and not gpu.place.capturing(self._stream):
            return abi.MW_OK  # of a graph, which releases at its next replay
        status = gpu.release(self._result.handle, self._stream)
        self._operation.abandon()  # which would release on its own stream
        return status


class GpuHandle(OnStream, Handle):
    """Of ``dispatch``."""


class GpuFlatHandle(OnStream, FlatHandle):
    """Of ``dispatch_flat``."""
