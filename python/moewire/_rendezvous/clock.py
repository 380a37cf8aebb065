"""A deadline for polling: it can be interrupted, unlike a store's own waits."""

from __future__ import annotations

import time
from collections.abc import Callable

_SHORTEST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.02


class Clock:
    """A span of time from now on; -1: no end."""

    def __init__(self, timeout_us: int) -> None:
        self.timeout_us = timeout_us
        self._until = None if timeout_us < 0 else time.monotonic() + timeout_us / 1e6

    def over(self) -> bool:
        """Whether the time has passed."""
        return self._until is not None and time.monotonic() > self._until

    def over_s(self) -> float:
        """The seconds since the time has passed; 0: it has not."""
        return 0.0 if self._until is None else max(0.0, time.monotonic() - self._until)

    def before(self, share: float, most_s: float) -> Clock:
        """A clock that ends earlier: by a share of the whole time, by ``most_s`` at most."""
        if self._until is None:
            return self
        early_s = min(share * self.timeout_us / 1e6, most_s)
        return Clock(max(0, int((self._until - early_s - time.monotonic()) * 1e6)))

    def left_us(self) -> int:
        """The time that is left, at least 1; -1 for no deadline."""
        if self._until is None:
            return -1
        left = int((self._until - time.monotonic()) * 1e6)
        return min(max(1, left), self.timeout_us)  # a float may round beyond the largest timeout

    def wait(self, done: Callable[[], bool]) -> bool:
        """Polls until ``done`` is true (True) or the time is over (False)."""
        pause = _SHORTEST_PAUSE_S
        while not done():
            if self.over():
                return False
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        return True
