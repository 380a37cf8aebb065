"""One clear log line for a slow or lost rank, through ``logging``, under the name "moewire".

The library keeps a list of events, and counts them in a word. Python reads the word after each
operation and each slice of a wait, and fetches the list only when the word has changed.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from .. import _abi as abi
from .lib import Library, read_json

LOGGER = logging.getLogger("moewire")
# At most one line per rank and kind in this many seconds.
QUIET_SECONDS = 10.0

_LEVELS = {"left": logging.INFO, "slow": logging.WARNING, "lost": logging.ERROR}


class Limiter:
    """Lets one event per key through in ``QUIET_SECONDS`` and counts the others."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], float] = {}
        self._left_out: dict[tuple[str, int], int] = {}

    def admit(self, key: tuple[str, int], now: float) -> int | None:
        """The number of events left out since the last one let through; None: leave this out."""
        last = self._last.get(key)
        if last is not None and now - last < QUIET_SECONDS:
            self._left_out[key] = self._left_out.get(key, 0) + 1
            return None
        self._last[key] = now
        return self._left_out.pop(key, 0)


class FallbackLog:
    """Logs once that a rank is reached by another carrier than it could be."""

    def __init__(self) -> None:
        self._logged: set[int] = set()
        self._lock = threading.Lock()

    def look(self, paths: list[dict[str, Any]]) -> None:
        """Logs what is new in the paths of a buffer."""
        with self._lock:
            new = [p for p in paths if p["fell_back"] and p["rank"] not in self._logged]
            self._logged.update(path["rank"] for path in new)
        for path in new:
            where = (path["rank"], path["carrier"], path["why"])
            LOGGER.warning("rank %d is reached over %s, a fallback: %s", *where)


class EventLog:
    """Logs the events of one buffer. Any thread may use it."""

    def __init__(self, lib: Library, buffer: abi.mw_buffer_t, rank: int) -> None:
        self._lib = lib
        self._buffer = buffer
        self._rank = rank
        self._word = lib.event_count().contents
        self._counted = self._word.value
        self._since = 0
        self._limiter = Limiter()
        self.fallbacks = FallbackLog()
        self._lock = threading.Lock()

    def look(self) -> None:
        """Logs new events. Costs one comparison when there are none."""
        if self._word.value != self._counted:
            self._fetch()

    def _fetch(self) -> None:
        if not self._lock.acquire(blocking=False):
            return  # another thread is at it
        try:
            self._counted = self._word.value
            status, found = read_json(self._lib.buffer_events, self._buffer, self._since)
            if status != abi.MW_OK:
                return  # closed meanwhile
            self._since = found["latest"]
            for event in found["events"]:
                self._log(event)
        finally:
            self._lock.release()

    def _log(self, event: dict[str, Any]) -> None:
        if event["kind"] == "fell_back":  # a link has changed its carrier in use
            status, paths = read_json(self._lib.buffer_paths, self._buffer)
            if status == abi.MW_OK:
                self.fallbacks.look(paths)
            return
        left_out = self._limiter.admit((event["kind"], event["rank"]), time.monotonic())
        if left_out is not None:
            LOGGER.log(_LEVELS[event["kind"]], "%s", describe(event, self._rank, left_out))


def _duration(ns: int) -> str:
    return f"{ns / 1e6:.0f} ms" if ns < 1e9 else f"{ns / 1e9:.1f} s"


def describe(event: dict[str, Any], waiting_rank: int, left_out: int) -> str:
    """The line for one event."""
    process = f"process {event['pid']}" if event["pid"] else "process unknown"
    about = f"rank {event['rank']} ({process}, epoch {event['epoch']})"
    if event["kind"] == "left":
        return f"{about} has left: {event['why']}"
    text = (
        f"{about} is {event['kind']}: "
        f"rank {waiting_rank} has waited {_duration(event['waited_ns'])} for it in "
        f"{event['waiting']} of operation {event['operation']}: {event['why']}"
    )
    if left_out:
        text += f" ({left_out} such lines were left out)"
    return text
