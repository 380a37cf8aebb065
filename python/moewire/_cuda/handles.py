"""The handles of dispatches on CUDA; a release takes effect on a stream."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from .. import _abi as abi
from .._base.opaque import opaque_methods
from .._ep.flat_results import FlatHandle
from ..errors import UnsupportedError
from ..handle import Handle, Held

if TYPE_CHECKING:
    from .._base.place import Place


def refuse_capture(place: Place, stream: Any, name: str) -> None:
    """Raises during a capture: a wait for the device would end the capture with an error."""
    if place.capturing(place.stream()) or place.capturing(stream):
        raise UnsupportedError(
            f"{name}: asked for while a stream is captured into a graph, of a "
            f"dispatch before it; ask {name} before the capture"
        )


class Answer(NamedTuple):
    """A dispatch's answer about its peers, readable when its stream has passed it."""

    place: Place
    stream: Any
    words: torch.Tensor  # int32
    at: int

    def wait(self) -> bool:
        """Waits for the stream. For a recorded dispatch the answer is that of the latest replay."""
        refuse_capture(self.place, self.stream, "peers_have_more")
        self.place.finish(self.stream)
        return bool(self.words[self.at])


# Words of one allocation. A kept handle keeps them all: 1 KiB.
_WORDS = 256


class Answers:
    """Has a word for each answer, and allocates many at a time. Any thread may use it.

    A word is never given out twice. An allocation belongs to one stream, as torch's memory does.
    What is captured does not use it: the graph has to keep its own memory.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._lock = threading.Lock()
        self._stream: Any = None
        self._words: torch.Tensor | None = None
        self._address = 0
        self._next = _WORDS

    def take(self, stream: Any, captured: bool) -> tuple[Answer, int]:
        """An answer and the address of its word. ``stream`` is the current one."""
        if captured:
            words = self._place.empty((1,), torch.int32)
            return Answer(self._place, stream, words, 0), words.data_ptr()
        with self._lock:
            words = self._words
            if words is None or self._next == _WORDS or stream != self._stream:
                words = self._words = self._place.empty((_WORDS,), torch.int32)
                self._stream, self._address, self._next = stream, words.data_ptr(), 0
            at = self._next
            self._next = at + 1
            return Answer(self._place, stream, words, at), self._address + 4 * at


@opaque_methods
class OnStream(Held):
    """A handle with a ``release()`` that takes effect after all present work of the current stream.

    A handle that is dropped unused is released on the stream of its dispatch.
    """

    _stream: Any = None
    _captured = False
    _answer: Answer
    _release_on: Callable[[abi.mw_handle_t, Any], int]  # behind the buffer's last operation

    @property
    def peers_have_more(self) -> bool:
        """Whether any rank dispatched with ``more=True``. Waits for the stream of the dispatch."""
        self.finish()
        return self._answer.wait()

    def release(self) -> None:
        """Tells every rank that this one is done with the operation. Idempotent."""
        if not self._released:
            self._stream = self._answer.place.stream()
        super().release()

    def _release(self) -> int:
        if self._released or self._runtime.closed or self._runtime.lib.forked:
            return abi.MW_OK
        self._released = True
        if self._captured and not self._answer.place.capturing(self._stream):
            # The graph releases at its next replay. The slot is no longer held.
            self._runtime.lib.handle_release_on(self._result.handle, abi.MW_STREAM_NONE)
            return abi.MW_OK
        status = self._release_on(self._result.handle, self._stream)
        self._operation.abandon()  # which would release on its own stream
        return status


class GpuHandle(OnStream, Handle):
    """The handle of ``dispatch``."""


class GpuFlatHandle(OnStream, FlatHandle):
    """The handle of ``dispatch_flat``."""
