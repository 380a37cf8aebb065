"""The jobs for the CPU that do not apply to CUDA, and a team that runs all others on either."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import (
    jobs_leave,
    jobs_life,
    jobs_oracle,
    jobs_order,
    jobs_routing,
    jobs_wait,
    required,
)
from .over_cuda import over_cuda
from .team import Team

_WAITS = "a call on CUDA launches and returns: no wait of the host's to end, interrupt or bound"
_REPORTED = (
    "who combines is told by a later call and has to update: jobs_autograd.experts_that_raise"
)
_MAPS = "reads where the process maps shared memory: a device's is not there"
_TUNES = "chooses how a processor copies rows: that changes nothing on a device"

# By job: why.
CPU_ALONE: dict[Callable[..., Any], str] = {
    jobs_life.close_wakes_a_waiter: _WAITS,
    jobs_life.interrupt: _WAITS,
    jobs_life.interrupted_hook: _WAITS,
    jobs_wait.waits_do_not_block: _WAITS,
    jobs_wait.combine_buffer_still_read: _WAITS,
    jobs_wait.threads_on_buffers: "what carries jobs over waits for the whole device behind each "
    "launch, so threads would wait for one another's buffers: test_cuda.py has threads",
    jobs_routing.interrupted: "what carries jobs over waits for the device inside a call, where no "
    "signal is seen: test_cuda.py interrupts one",
    jobs_life.views_outlive: f"{_MAPS}: jobs_cuda.outlived",
    jobs_life.copies: f"{_MAPS}: jobs_cuda.copied",
    jobs_life.debug_fill: "NaN comes when a slot is taken again, not when it is released: "
    "jobs_cuda.debug_fill",
    jobs_leave.fails_half_way: _REPORTED,
    jobs_order.abandoned_on_one: _REPORTED,
    jobs_order.soak: "takes minutes: ten thousand operations are in the engine's own tests",
    jobs_oracle.vector_widths: _TUNES,
    jobs_oracle.tuned: _TUNES,
    jobs_oracle.reserved_huge_pages: _TUNES,
    jobs_oracle.block_orders: "sources reserve at once, so that delays of the host force no order",
    jobs_oracle.corrupted: "a library that flips a bit of the processor's own sums",
}


class Ranks:
    """``Team.run`` on one kind of device. ``driver``: None for the CPU, else of ``over_cuda``."""

    def __init__(self, team: Team, driver: str | None) -> None:
        self._team = team
        self._driver = driver
        self.emulated = bool(driver)

    def run(self, size: int, job: Callable[..., Any], *args: Any, **how: Any) -> list[Any]:
        """The results by rank."""
        if self._driver is None:
            return self._team.run(size, job, *args, **how)
        assert job not in CPU_ALONE, CPU_ALONE[job]
        return self._team.run(size, over_cuda, self._driver, job, *args, **how)

    def need_device(self, why: str) -> None:
        """Skips a test that is too much for the emulated device, or fails it under CUDA's name."""
        if self.emulated:
            required.lacking("cuda", f"needs a CUDA device: {why}")

    def few(self, many: int, few: int, on_device: int | None = None) -> int:
        """A smaller number where the processor stands in for a device, or on a device itself."""
        if self._driver is None or (on_device is None and not self.emulated):
            return many
        return few if self.emulated or on_device is None else on_device
