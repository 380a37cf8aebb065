"""The structs of calls that every transfer makes: made once, and used again.

A call takes a struct out of a list and puts it back afterwards. Popping and appending are each
atomic for threads and for signal handlers. So a struct belongs to one call at a time, even if a
handler makes a call of its own between the end of a call and the reading of its result. A list
has as many structs as there ever were calls at a time. A struct that an exception keeps from being
put back is lost, and another is made.
"""

from __future__ import annotations

from ctypes import sizeof
from struct import Struct

from .. import _abi as abi

ARGS = Struct("@IIQQQQQQQQII")
"""``mw_transfer_args_t``: packed in one step, which is faster than field by field."""
RESULT = Struct("@IiQII")
"""``mw_transfer_result_t``."""

spare_args: list[abi.mw_transfer_args_t] = []
spare_results: list[abi.mw_transfer_result_t] = []


def take_args() -> abi.mw_transfer_args_t:
    """A struct to be packed with ``ARGS``, and then appended to ``spare_args``."""
    try:
        return spare_args.pop()
    except IndexError:
        return abi.mw_transfer_args_t()


def take_result() -> abi.mw_transfer_result_t:
    """A struct to be filled by the library, read, and then appended to ``spare_results``."""
    try:
        return spare_results.pop()
    except IndexError:
        return abi.mw_transfer_result_t(size=sizeof(abi.mw_transfer_result_t))
