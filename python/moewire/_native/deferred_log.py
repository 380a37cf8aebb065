"""Warnings from places that may not log: a log handler has a lock, and its callers may have some.

A garbage collection may happen anywhere, also inside a log handler. An object that is collected
there may want a lock; the thread that holds this lock may be about to log, and want the handler.
So code that runs in a collection, or under a lock that such code takes, only leaves its text here.
"""

from __future__ import annotations

import atexit
import logging
from collections import deque

# If there are more, the oldest are dropped: the latest failures say most.
MAX_KEPT = 64

_texts: deque[str] = deque(maxlen=MAX_KEPT)  # needs no lock


def leave(text: str) -> None:
    """Leaves a warning to be logged later. Takes no lock and does not wait."""
    _texts.append(text)


def flush() -> None:
    """Logs what was left. Callers hold no lock and are not in a garbage collection."""
    while _texts:
        try:
            text = _texts.popleft()
        except IndexError:  # another thread has it
            return
        logging.getLogger("moewire").warning("%s", text)


atexit.register(flush)
