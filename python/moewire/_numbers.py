"""What checks of arguments say, and whole numbers; usable without torch."""

from __future__ import annotations

import operator

from .errors import InvalidArgument


def refuse(name: str, given: object, allowed: object) -> InvalidArgument:
    """The error for an argument; to be raised by the caller."""
    return InvalidArgument(f"{name}: {given} given; allowed: {allowed}")


def integer(name: str, value: object, low: int, high: int) -> int:
    """``value`` as an int in ``low..high``; no bool, which stands in another argument's place."""
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
