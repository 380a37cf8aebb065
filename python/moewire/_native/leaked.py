"""Memory that could not be released: logged, and tried again."""

from __future__ import annotations

import atexit
from collections import deque
from typing import TYPE_CHECKING

from .. import _abi as abi
from . import deferred_log

if TYPE_CHECKING:
    from .lib import Library

# One entry per release that failed: no more than there are workspaces which are still allocated.
# No lock is needed. None would be safe: tensors may be collected under any lock, this one too.
_leaked: deque[tuple[Library, abi.mw_memory_t]] = deque()


def release(library: Library, memory: abi.mw_memory_t) -> None:
    """Releases memory, or keeps it as leaked, for ``retry``. Does not wait."""
    if library.forked:
        return  # it is the parent's
    status = library.memory_release(memory)
    if status >= 0 or status == abi.MW_ERR_HANDLE:  # there is no such memory any more
        return
    deferred_log.leave(
        "memory of a closed buffer could not be released, and is tried again when a "
        f"buffer on CUDA is closed, and at the end of the process: {library.error_text()}"
    )
    _leaked.append((library, memory))


def retry() -> None:
    """Tries to release each leaked memory once; for a close, and the end of the process.

    It may wait for a device that is not done, and such a wait ends a capture with an error. So a
    garbage collection, which may happen anywhere, must not call it.
    """
    for _ in range(len(_leaked)):
        try:
            one = _leaked.popleft()
        except IndexError:  # another thread has it
            return
        release(*one)


atexit.register(retry)  # after deferred_log, so that it runs before its flush
