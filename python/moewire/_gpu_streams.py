"""The order of a buffer's operations on CUDA, whichever streams they are launched on."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from . import _deferred_log
from ._torch_cuda import Place


class Streams:
    """A rank's operations follow one another, as its peers expect them to.

    ``lock`` is held from ``begin`` to ``end``: what is put in order is launched in that order. A
    handle may be collected while it is held, hence an RLock, and ``put_off``. No other lock is
    taken under it, because a handle may be collected under any other; so nobody logs under it.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self._side: Any = None
        self._running: Any = None  # of the last operation that was not recorded
        self._recorded: Any = None  # of the last one that was, while that may be the same capture
        self._unfollowed: list[Any] = []  # with what ran before, and are captured since
        self.launching = False  # by this very thread, for who has the lock
        self._put_off: deque[Callable[[], object]] = deque()  # by handles, of which slots are few
        self.lock = threading.RLock()

    def choose(self, aside: bool) -> tuple[Any, bool]:
        """The stream for the next operation, the current one, and whether it is being captured.

        ``aside``: a stream of the buffer's own, behind the current one.
        """
        current = self.place.stream()
        if not aside:
            return current, self.place.recording()
        side = self.side()
        self.place.follow(side, current)
        return side, self.place.capturing(side)

    def side(self) -> Any:
        """The buffer's own stream."""
        with self.lock:
            if self._side is None:
                self._side = self.place.side()
            return self._side

    def begin(self, stream: Any) -> None:
        """Puts what is launched next on ``stream`` behind the last operation; under ``lock``.

        Whatever becomes of it, ``end`` follows.
        """
        self.launching = True
        if stream == self._running and self._recorded is None:
            return  # the common case, without a look at what is captured
        if self.place.capturing(stream):
            self._record(stream)
        else:
            self._run(stream)

    # What is being recorded and what runs cannot wait for one another. Their order is that in
    # which the caller launches the graph.

    def _run(self, stream: Any) -> None:
        unfollowed = []
        for other in [*self._unfollowed, self._running]:  # all that nobody has followed
            if other is None or other == stream:
                continue
            if self.place.capturing(other):
                unfollowed.append(other)
            else:
                self.place.follow(stream, other)
        # Not before: after an error the next call has to follow them still.
        self._running, self._unfollowed = stream, unfollowed
        self._look_again()

    def _look_again(self) -> None:
        """``_recorded`` is what makes the next operation look: as long as there is cause to."""
        if self._unfollowed:  # the last of them may have been launched on while nobody looked
            if self._recorded is None:
                self._recorded = self._unfollowed[-1]
        elif self._recorded is not None and not self.place.capturing(self._recorded):
            self._recorded = None

    def _record(self, stream: Any) -> None:
        last = self._recorded
        if last is None or not self.place.capturing(last):
            last = self._running  # may have been captured since: then nobody looked
        if last is not None and last != stream and self.place.capturing(last):
            self.place.follow(stream, last)
        self._recorded = stream

    def end(self) -> None:
        """It has been launched, or could not be."""
        self.launching = False
        while self._put_off:
            try:
                self._put_off.popleft()()
            except Exception as error:  # of torch: the handle's, not the call's that it came into
                _deferred_log.leave(f"a handle on CUDA could not be released: {error!r}")

    def put_off(self, call: Callable[[], object]) -> None:
        """For who comes while ``launching``; under ``lock``.

        It would come between the stream's being put in order and what it was for.
        """
        self._put_off.append(call)
