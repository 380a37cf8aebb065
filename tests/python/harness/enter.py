"""Where a process of a team begins: nothing of Moewire is imported yet, and there is one thread."""

from __future__ import annotations

import ctypes
import os
from typing import Any

_CLONE_NEWNET = 0x40000000


def main(environment: dict[str, str], namespace: str | None, *arguments: Any) -> None:
    """Moves into a network namespace, if one is given; then ``member.main``.

    The process was forked from one with an older environment: it takes its starter's.
    """
    os.environ.clear()
    os.environ.update(environment)
    if namespace is not None:
        enter(namespace)
    from . import member

    member.main(*arguments)


def enter(namespace: str) -> None:
    """Moves this thread, and those that it will start, into the namespace at that path."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(namespace) as file:
        if libc.setns(file.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns({namespace!r})")
