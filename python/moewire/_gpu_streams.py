"""The order of a buffer's operations on CUDA, whichever streams they are launched on."""

from __future__ import annotations

import threading
from typing import Any

from ._torch_cuda import Place


class Streams:
    """A rank's operations follow one another, as its peers expect them to."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._side: Any = None
        self._last: Any = None
        self._lock = threading.Lock()

    def enter(self, aside: bool) -> Any:
        """The stream for the next operation, behind the one before it.

        ``aside``: a stream of the buffer's own, behind the current one.
        """
        current = self.place.stream()
        if not aside:
            return self.order(current)
        with self._lock:
            if self._side is None:
                self._side = self.place.side()
        self.place.follow(self._side, current)
        return self.order(self._side)

    def order(self, stream: Any) -> Any:
        """Puts what comes next on ``stream`` behind the last operation; gives ``stream``."""
        with self._lock:
            last, self._last = self._last, stream
        if last is None or last == stream:
            return stream
        # What is being recorded and what runs cannot wait for one another. Their order is
        # that in which the caller launches the graph.
        if self.place.capturing(stream) == self.place.capturing(last):
            self.place.follow(stream, last)
        return stream
