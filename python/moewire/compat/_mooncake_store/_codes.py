"""The return codes of ``mooncake.store``, and how a call fails: a code, and a line of log."""

from __future__ import annotations

import functools
import logging

from ...errors import ClosedError, InvalidArgument, MoewireError, RefusedError

OK = 0
FULL = -200  # no room: the store is full, or the block is larger than a segment
BAD_KEY = -400
BAD_ARGUMENT = -600  # also: not set up, and a buffer that is too small
REFUSED = -601
MISSING = -704
NO_SERVER = -900

log = logging.getLogger("moewire")


class Problem(Exception):
    """Ends a call, which returns the code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def code_of(error: MoewireError | Problem) -> int:
    """The code that a call returns for an error of the client."""
    match error:
        case Problem():
            return error.code
        case InvalidArgument() | ClosedError():
            return BAD_ARGUMENT
        case RefusedError():
            return REFUSED
    return NO_SERVER


@functools.lru_cache(maxsize=64)
def warn_once(text: str) -> None:
    """Warns of something that is accepted and has another effect than with Mooncake."""
    log.warning("mooncake.store on moewire: %s", text)
