"""Reads arguments of ``moewire bench``; refuses impossible values with a reason."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

_UNITS = {"K": 1 << 10, "M": 1 << 20}


def names(text: str) -> list[str]:
    """Words with commas."""
    return [part for part in text.split(",") if part]


def some_numbers(text: str) -> list[int]:
    """Whole numbers with commas, or none."""
    return _each(text, int, "whole numbers with commas, such as 1,4")


def numbers(text: str) -> list[int]:
    """Whole numbers with commas, at least one."""
    found = some_numbers(text)
    if not found:
        raise _refused(text, "at least one whole number")
    return found


def sizes(text: str) -> list[int]:
    """Bytes with commas, with K or M, or none."""
    return _each(text, _size, "bytes with commas, such as 512,64K,1M")


def seconds(text: str) -> float:
    """A length of time, 0 included."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 <= found < math.inf:
        raise _refused(text, "seconds, 0 and more")
    return found


def _each(text: str, read: Callable[[str], int], allowed: str) -> list[int]:
    try:
        return [read(part) for part in names(text)]
    except ValueError:
        raise _refused(text, allowed) from None


def _size(text: str) -> int:
    unit = _UNITS.get(text[-1:].upper())
    return int(text[:-1]) * unit if unit else int(text)


def _refused(text: str, allowed: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"{text!r} given; allowed: {allowed}")
