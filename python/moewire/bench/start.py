"""A common start: ranks begin a step at a time that rank 0 names after a barrier.

With more ranks than cores they leave a barrier far apart, and a rank that runs alone for a while
looks faster than a group can be. If every rank has a core, it spins for the last moments, so
that waking up is not part of a sample. If not, spinning would take a core from the others.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

_LEAD_SECONDS = 0.004
# Longer than the others need to end the step.
_REST_SECONDS = 0.015
_SPIN_SECONDS = 0.0003


def spin_seconds(num_ranks: int) -> float:
    """How long before the start a rank is awake."""
    return _SPIN_SECONDS if num_ranks <= len(os.sched_getaffinity(0)) else 0.0


class Start:
    """One rank's clock. ``library`` is the floor's, or None."""

    def __init__(self, group: dist.ProcessGroup, library: ctypes.CDLL | None) -> None:
        self._group = group
        self._library = library
        self._spin = spin_seconds(group.size())

    def agree(self) -> float:
        """Collective: the time at which all ranks begin, of ``time.perf_counter``.

        A rank that has ended a step rests first. If ranks share cores, it would otherwise
        occupy a core that the others need to end their step.
        """
        if self._spin == 0:
            time.sleep(_REST_SECONDS)
        dist.barrier(self._group)
        begin = torch.tensor(time.perf_counter() + _LEAD_SECONDS, dtype=torch.float64)
        dist.broadcast(begin, 0, self._group)
        return float(begin)

    @property
    def spin(self) -> float:
        """How many seconds before the start a rank is awake."""
        return self._spin

    def wait(self, begin: float) -> None:
        """Returns at ``begin``."""
        if self._library is not None:
            self._library.floor_wait_until(int(begin * 1e9), int(self._spin * 1e9))
        else:
            time.sleep(max(0.0, begin - time.perf_counter()))

    def timed(self, function: Callable[[], object], begin: float) -> tuple[float, float]:
        """When ``function`` began, not before ``begin``, and when it ended."""
        self.wait(begin)
        start = time.perf_counter()
        function()
        return start, time.perf_counter()
