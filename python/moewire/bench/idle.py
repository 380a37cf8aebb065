"""Waits, but not for ever, until nothing else uses the processors."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

# Of all processors together. Below it medians of repeated runs agree.
BUSY_LIMIT = 0.10
_LOOK_SECONDS = 1.0


def wait(limit_seconds: float, look: Callable[[], float] | None = None) -> dict[str, float | bool]:
    """What was found: the busy share, seconds waited, and whether it was quiet in the end."""
    look = look or busy_share
    begin = time.monotonic()
    busy = look()
    while busy > BUSY_LIMIT and time.monotonic() - begin < limit_seconds:
        busy = look()
    waited = time.monotonic() - begin
    return {"busy": busy, "waited_seconds": waited, "quiet": busy <= BUSY_LIMIT}


def busy_share() -> float:
    """The share of processor time, over one second, that was used or stolen."""
    idle, total = _ticks()
    time.sleep(_LOOK_SECONDS)
    idle_later, total_later = _ticks()
    passed = total_later - total
    return 1.0 - (idle_later - idle) / passed if passed else 0.0


def _ticks() -> tuple[int, int]:
    """Idle and all ticks since the machine started; where there is no count, from the load."""
    try:
        with open("/proc/stat") as lines:
            numbers = [int(word) for word in next(lines).split()[1:9]]
    except (OSError, ValueError, StopIteration):
        busy = min(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        now = int(time.monotonic() * 1000)
        return int(now * (1 - busy)), now
    return numbers[3] + numbers[4], sum(numbers)
