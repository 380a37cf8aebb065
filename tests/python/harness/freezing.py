"""A rank's process is stopped, as by a debugger, while the others go on."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from .member import Rank

_SECONDS = 60.0  # until a process that says it stops itself has stopped


def freeze(rank: Rank) -> None:
    """Stops this process until one that is in ``while_frozen`` leaves it."""
    marker = Path(rank.folder, "frozen.new")
    marker.write_text(str(os.getpid()))
    marker.rename(Path(rank.folder, "frozen"))
    os.kill(os.getpid(), signal.SIGSTOP)


@contextlib.contextmanager
def while_frozen(rank: Rank) -> Iterator[None]:
    """Waits until ``freeze`` has stopped its process, and lets it go on at the end."""
    marker, begin = Path(rank.folder, "frozen"), time.monotonic()
    while not (marker.exists() and _is_stopped(marker.read_text())):
        # A process that was continued too early would stop for good.
        assert time.monotonic() - begin < _SECONDS, "no process has stopped itself"
        time.sleep(0.001)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(marker.read_text()), signal.SIGCONT)


def _is_stopped(pid: str) -> bool:
    # The name, in parentheses, may contain anything; the state comes after it.
    return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] == "T"
