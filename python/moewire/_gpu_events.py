"""Says what befalls a group whose calls only launch: while it waits, no call is there to.

And what was left for who may log.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from typing import TYPE_CHECKING

from . import _deferred_log

if TYPE_CHECKING:
    from ._events import EventLog

# How often it looks: a comparison of two numbers.
PERIOD_SECONDS = 0.25


class EventListener:
    """A thread that looks for new events of a buffer until it is told to stop."""

    def __init__(self, events: EventLog) -> None:
        # Held while it listens. A lock and no Event: that has a lock of its own inside, which the
        # thread itself may have when the garbage collector ends a buffer there.
        self._stop = threading.Lock()
        self._stop.acquire()
        seen = weakref.ref(events)  # a buffer that nobody closed must not live on by it
        thread = threading.Thread(
            target=_listen, args=(seen, self._stop), name="moewire events", daemon=True
        )
        thread.start()

    def stop(self) -> None:
        """Ends it. Idempotent; waits for nobody."""
        with contextlib.suppress(RuntimeError):  # it was stopped
            self._stop.release()


def _listen(seen: weakref.ref[EventLog], stop: threading.Lock) -> None:
    while not stop.acquire(timeout=PERIOD_SECONDS):
        events = seen()
        if events is None:
            return
        try:
            events.look()
            _deferred_log.flush()
        except Exception:  # of a handler of the program's: what befalls next is told all the same
            logging.getLogger("moewire").debug("events of a buffer on CUDA", exc_info=True)
        del events
