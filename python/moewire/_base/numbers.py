"""Error texts of argument checks, integers, and booleans; usable without torch."""

from __future__ import annotations

import operator
import os

from .._abi import LIMITS
from ..errors import InvalidArgument


def refuse(name: str, given: object, allowed: object) -> InvalidArgument:
    """The error for an argument; to be raised by the caller."""
    return InvalidArgument(f"{name}: {given} given; allowed: {allowed}")


# Equal values are found, too: 1 and 0, numpy's bools.
_BOOLEANS = {True: True, False: False}


def boolean(name: str, value: object) -> bool:
    """``value`` as a bool; no other value stands for yes or no."""
    try:
        return _BOOLEANS[value]  # type: ignore[index]
    except (KeyError, TypeError):
        raise refuse(name, repr(value), "True, False") from None


def switch(variable: str, default: bool = False) -> bool:
    """An environment variable that is 0, 1, or, for ``default``, empty or unset."""
    text = os.environ.get(variable, "")
    if text not in ("", "0", "1"):
        raise refuse(variable, repr(text), "0, 1")
    return text == "1" if text else default


def limited(name: str, value: object, row: str = "") -> int:
    """``value`` as an int in the range that the library has for it, by its name or ``row``."""
    return integer(name, value, *LIMITS[row or name])


def integer(name: str, value: object, low: int, high: int) -> int:
    """``value`` as an int in ``low..high``. A bool is refused: it is a misplaced argument."""
    if type(value) is int:
        number = value
    elif isinstance(value, bool):
        raise refuse(name, f"{value!r} of type bool", "an int")
    else:
        try:
            number = operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            raise refuse(name, f"{value!r} of type {type(value).__name__}", "an int") from None
    if not low <= number <= high:
        raise refuse(name, number, f"{low} to {high}")
    return number
