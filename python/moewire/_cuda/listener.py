"""Logs the events of a group on CUDA: its calls only launch, so none is there to log them later.

Also logs the warnings that ``deferred_log`` keeps.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from typing import TYPE_CHECKING

from .._native import deferred_log

if TYPE_CHECKING:
    from .._native.event_log import EventLog

# How often it looks. A look compares two numbers.
PERIOD_SECONDS = 0.25


class EventListener:
    """A thread that looks for new events of a buffer until it is told to stop."""

    def __init__(self, events: EventLog) -> None:
        # Held while it listens. A lock, not an Event: an Event has a lock of its own inside, which
        # this thread may hold when the garbage collector ends a buffer there.
        self._stop = threading.Lock()
        self._stop.acquire()
        seen = weakref.ref(events)  # the thread must not keep an unclosed buffer alive
        thread = threading.Thread(
            target=_listen, args=(seen, self._stop), name="moewire events", daemon=True
        )
        thread.start()

    def stop(self) -> None:
        """Ends the thread. Idempotent; does not wait."""
        with contextlib.suppress(RuntimeError):  # it was stopped
            self._stop.release()


def _listen(seen: weakref.ref[EventLog], stop: threading.Lock) -> None:
    while not stop.acquire(timeout=PERIOD_SECONDS):
        events = seen()
        if events is None:
            return
        try:
            events.look()
            deferred_log.flush()
        except Exception:  # of a log handler of the program: later events are logged all the same
            logging.getLogger("moewire").debug("events of a buffer on CUDA", exc_info=True)
        del events
