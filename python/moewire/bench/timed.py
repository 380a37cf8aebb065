"""Operations timed by C, and pairs of them without rest, timed by C or Python."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Sequence
from ctypes import POINTER, Structure, c_int32, c_int64, c_void_p
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

from ..errors import MoewireError

# Of one round without rest: pairs before the first that counts, and those that count.
LEAD, PAIRS = 10, 40

Span = tuple[float, float]


class When(Structure):
    """``struct when`` of clock.h."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        ("begin", c_int64),
        ("spin", c_int64),
        ("times", c_void_p),
    ]


class Round(NamedTuple):
    """One round of pairs on one rank, in seconds; no medians where only the whole is known."""

    begin: float
    end: float
    dispatch: float | None = None
    combine: float | None = None


def round_of(times: Sequence[float]) -> Round:
    """From when it began and when each operation ended."""
    durations = [after - before for before, after in pairwise(times)]
    dispatch, combine = statistics.median(durations[::2]), statistics.median(durations[1::2])
    return Round(times[0], times[-1], dispatch, combine)


def python_round(dispatch: Callable[[], object], combine: Callable[[], object]) -> Round:
    """``PAIRS`` pairs after ``LEAD``, called from Python."""
    for _ in range(LEAD):
        dispatch()
        combine()
    times = [time.perf_counter()]
    for _ in range(PAIRS):
        dispatch()
        times.append(time.perf_counter())
        combine()
        times.append(time.perf_counter())
    return round_of(times)


class Timed:
    """What ``<name>_dispatch``, ``_combine`` and ``_pairs`` of a library do with ``state``."""

    def __init__(self, library: ctypes.CDLL, name: str, state: Structure, spin: float) -> None:
        self._functions = [getattr(library, f"{name}_{kind}") for kind in ("dispatch", "combine")]
        self._pairs = getattr(library, f"{name}_pairs")
        for function in (*self._functions, self._pairs):
            function.restype = c_int32
            function.argtypes = [c_void_p, POINTER(When)]
        self._pairs.argtypes += [c_int64, c_int64]
        self._state, self._spin = state, int(spin * 1e9)
        self._times = (c_int64 * (2 * PAIRS + 1))()

    def dispatch(self, begin: float = 0.0) -> Span:
        """When it began, not before ``begin``, and when it ended."""
        return self._run(self._functions[0], begin)

    def combine(self, begin: float = 0.0) -> Span:
        """The same."""
        return self._run(self._functions[1], begin)

    def round(self, begin: float) -> Round:
        """Pairs without rest."""
        _check(self._pairs(ctypes.addressof(self._state), self._when(begin), LEAD, PAIRS))
        return round_of([nanoseconds * 1e-9 for nanoseconds in self._times])

    def _run(self, function: Any, begin: float) -> Span:
        _check(function(ctypes.addressof(self._state), self._when(begin)))
        return self._times[0] * 1e-9, self._times[1] * 1e-9

    def _when(self, begin: float) -> When:
        return When(int(begin * 1e9), self._spin, ctypes.addressof(self._times))


def _check(status: int) -> None:
    if status != 0:
        raise MoewireError(f"a call that was measured returned status {status}")
