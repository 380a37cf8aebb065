"""Each host's own processors: those of this machine are dealt out between the two."""

from __future__ import annotations

import os
from collections.abc import Collection

NUM_HOSTS = 2


def of(host: int, processors: Collection[int]) -> set[int]:
    """Host 0 has the first half of them, host 1 the rest; all of them if there is only one."""
    ordered = sorted(processors)
    half = len(ordered) // NUM_HOSTS
    if half == 0:
        return set(ordered)
    return set(ordered[:half] if host == 0 else ordered[half:])


def confine(host: int) -> None:
    """Keeps this process, which still has one thread, and its children on its host's processors.

    Two hosts share no processor. If these did, the scheduler might put both ends of a connection on
    one processor, which no network does.
    """
    os.sched_setaffinity(0, of(host, os.sched_getaffinity(0)))
