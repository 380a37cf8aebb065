"""The handles of dispatches on CUDA, which are released when a stream comes to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from . import _abi as abi
from ._flat_results import FlatHandle
from .errors import UnsupportedError
from .handle import Handle, Held

if TYPE_CHECKING:
    import torch

    from ._torch_cuda import Place


def refuse_capture(place: Place, stream: Any, name: str) -> None:
    """To wait for a device would end what is being recorded with an error."""
    if place.capturing(place.stream()) or place.capturing(stream):
        raise UnsupportedError(
            f"{name}: asked for while a stream is captured into a graph, of a "
            f"dispatch before it; ask {name} before the capture"
        )


class Answer(NamedTuple):
    """What a dispatch says of its peers, once its stream has come past it."""

    place: Place
    stream: Any
    words: torch.Tensor  # int32
    at: int

    def wait(self) -> bool:
        """Waits for the stream. Of a recorded dispatch it is that of the latest replay."""
        refuse_capture(self.place, self.stream, "peers_have_more")
        self.place.finish(self.stream)
        return bool(self.words[self.at])


class OnStream(Held):
    """``release()`` takes effect behind what the current stream has so far.

    A handle that is dropped unused is released on the stream of its dispatch.
    """

    _stream: Any = None
    _captured = False
    _answer: Answer

    @property
    def peers_have_more(self) -> bool:
        """Whether any rank dispatched with ``more=True``. Waits for the stream of the dispatch."""
        self.finish()
        return self._answer.wait()

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
