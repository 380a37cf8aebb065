"""Warnings from where nobody may log: a handler of the log has a lock, and so have its callers.

A collection may come anywhere, also in a handler that a thread is in. What it finds there may
want a lock whose holder is about to log, and wants that handler. So who is collected, or holds a
lock that the collected take, only leaves word here.
"""

from __future__ import annotations

import atexit
import logging
from collections import deque

# Beyond them the oldest ones go: the latest failures say most.
MAX_KEPT = 64

_texts: deque[str] = deque(maxlen=MAX_KEPT)  # needs no lock


def leave(text: str) -> None:
    """Leaves a warning to be logged. Takes no lock and waits for nobody."""
    _texts.append(text)


def flush() -> None:
    """Logs what was left; for who holds no lock and is not being collected."""
    while _texts:
        try:
            text = _texts.popleft()
        except IndexError:  # another thread has it
            return
        logging.getLogger("moewire").warning("%s", text)


atexit.register(flush)
