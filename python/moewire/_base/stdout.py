"""How a command ends when the reader of its output is gone, as in ``moewire doctor | head``."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable

# As a shell reports a process that ended by SIGPIPE.
NOBODY_READS = 141


def run(command: Callable[[], int]) -> int:
    """The command's exit status; ``NOBODY_READS``, without a traceback, if its reader has gone.

    Broken pipes other than standard output are raised.
    """
    try:
        try:
            return command()
        finally:
            sys.stdout.flush()  # here, not where the interpreter ends and can only complain
    except BrokenPipeError:
        if not _broken():
            raise
        # What is still buffered goes nowhere, when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOBODY_READS


def _broken() -> bool:
    """Whether standard output is a pipe or socket with its other end closed."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # asks for nothing but these
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))
