"""The order of a buffer's operations on CUDA, on any streams."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from .._base.place import Place
from .._native import deferred_log


class Streams:
    """Runs a rank's operations one after another, as its peers expect.

    ``lock`` is held from ``begin`` to ``end``: operations are launched in the order in which they
    were put. A handle may be collected while the lock is held, hence an RLock, and ``put_off``. No
    other lock is taken under it, because a handle may be collected under any other lock. So
    nothing is logged under it.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self._side: Any = None
        self._running: Any = None  # stream of the last operation that was not recorded
        self._recorded: Any = None  # of the last recorded one, while the capture may last
        self._unfollowed: list[Any] = []  # ran operations, are captured since
        self.launching = False  # by the thread that has the lock
        self._put_off: deque[Callable[[], object]] = deque()  # few, as slots are
        self.lock = threading.RLock()

    def choose(self, aside: bool) -> tuple[Any, bool]:
        """The stream for the next operation, the current one, and whether it is being captured.

        ``aside``: choose the buffer's own stream, behind the current one.
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

        ``end`` must follow, also after an error.
        """
        self.launching = True
        if stream == self._running and self._recorded is None:
            return  # the common case, without a look at what is captured
        if self.place.capturing(stream):
            self._record(stream)
        else:
            self._run(stream)

    # Recorded and running operations cannot wait for one another. The caller sets their order when
    # it launches the graph.

    def _run(self, stream: Any) -> None:
        unfollowed = []
        for other in [*self._unfollowed, self._running]:  # all that no later stream has followed
            if other is None or other == stream:
                continue
            if self.place.capturing(other):
                unfollowed.append(other)
            else:
                self.place.follow(stream, other)
        # Only now: after an error the next call still has to follow them.
        self._running, self._unfollowed = stream, unfollowed
        self._look_again()

    def _look_again(self) -> None:
        """Keeps ``_recorded`` set as long as the next operation must look at captures."""
        if self._unfollowed:  # the last one may have got operations unseen
            if self._recorded is None:
                self._recorded = self._unfollowed[-1]
        elif self._recorded is not None and not self.place.capturing(self._recorded):
            self._recorded = None

    def _record(self, stream: Any) -> None:
        last = self._recorded
        if last is None or not self.place.capturing(last):
            last = self._running  # captured since, perhaps: ``begin`` did not look
        if last is not None and last != stream and self.place.capturing(last):
            self.place.follow(stream, last)
        self._recorded = stream

    def end(self) -> None:
        """Ends what ``begin`` began: the operation has been launched, or could not be."""
        self.launching = False
        while self._put_off:
            try:
                self._put_off.popleft()()
            except Exception as error:  # of torch: it concerns the handle, not the present call
                deferred_log.leave(f"a handle on CUDA could not be released: {error!r}")

    def put_off(self, call: Callable[[], object]) -> None:
        """Takes a call that comes while ``launching``; under ``lock``. ``end`` makes it.

        Made at once, it would come between the ordering of the stream and the launch.
        """
        self._put_off.append(call)
