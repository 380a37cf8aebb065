"""The order of a buffer's operations on CUDA, whichever streams they are launched on."""

from __future__ import annotations

import threading
from typing import Any

from ._torch_cuda import Place


class Streams:
    """A rank's operations follow one another, as its peers expect them to.

    ``lock`` is held from ``order`` until the library has launched: what is put in order is
    launched in that order. A handle may be collected while it is held, hence an RLock. No other
    lock is taken under it, because a handle may be collected under any other.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self._side: Any = None
        self._last: Any = None
        self.lock = threading.RLock()

    def choose(self, aside: bool) -> Any:
        """The stream for the next operation: the current one.

        ``aside``: a stream of the buffer's own, behind the current one.
        """
        current = self.place.stream()
        if not aside:
            return current
        side = self.side()
        self.place.follow(side, current)
        return side

    def side(self) -> Any:
        """The buffer's own stream."""
        with self.lock:
            if self._side is None:
                self._side = self.place.side()
            return self._side

    def order(self, stream: Any) -> None:
        """Puts what comes next on ``stream`` behind the last operation; under ``lock``."""
        last, self._last = self._last, stream
        if last is None or last == stream:
            return
        # What is being recorded and what runs cannot wait for one another. Their order is
        # that in which the caller launches the graph.
        if self.place.capturing(stream) == self.place.capturing(last):
            self.place.follow(stream, last)
