"""What a hook hides: one peer is late, and the other rank computes until it comes.

Two ranks with one compute thread each. Rank 1 computes for d before it calls, rank 0 calls at
once; both then compute for longer than d and call the hook. Three ways, in turns:

- alone: the same computing on both ranks, without a call;
- overlapped: call, compute, hook;
- blocking: call without a hook, compute.

Times are rank 0's. The wait is hidden if overlapped takes at most ``LIMIT`` times what cannot be
saved: its computing alone, or the time by which rank 1 was later, whichever is longer.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

from moewire.bench import idle, launch, tables, workload
from moewire.bench.cases import Case
from moewire.bench.ours import Moewire
from moewire.bench.start import Start
from moewire.bench.worker import Place, Settings, gloo
from moewire.buffer import Buffer
from moewire.event import Hook

DELAYS_MS = (1.0, 5.0, 20.0, 100.0)
LIMIT = 1.1
# Rank 0's own work by rank 1's delay: with the same length the peer's rows would always come last.
_WORK_PER_DELAY = 1.5
_SIDE = 64  # of the matrices: they stay in the nearest caches
_CALIBRATION_SECONDS = 0.05

Samples = dict[str, list[tuple[float, float]]]


class Compute:
    """Matrix products in one thread, for as long as asked where nothing else runs."""

    def __init__(self) -> None:
        self._a, self._b = torch.randn(2, _SIDE, _SIDE).unbind()
        self._out = torch.empty_like(self._a)
        self._rounds(100)
        self._per_second = statistics.median(self._rate() for _ in range(5))

    def _rate(self) -> float:
        """Products per second of processor time: what else runs here does not count."""
        begin, rounds = time.thread_time(), 0
        while time.thread_time() - begin < _CALIBRATION_SECONDS:
            self._rounds(10)
            rounds += 10
        return rounds / (time.thread_time() - begin)

    def _rounds(self, count: int) -> None:
        for _ in range(count):
            torch.mm(self._a, self._b, out=self._out)

    def run(self, seconds: float) -> None:
        """Computes the same number of products each time, on a busy machine, too."""
        self._rounds(max(1, round(seconds * self._per_second)))


def measure(
    todo: list[Case], settings: Settings, options: argparse.Namespace, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """What hooks hide, in each shape."""
    return [_one(case, settings, options, say) for case in todo]


def _one(
    case: Case, settings: Settings, options: argparse.Namespace, say: Callable[[str], None]
) -> dict[str, Any]:
    tables.progress(f"overlap, {case.title}")
    quiet = idle.wait(options.idle_wait)
    with tempfile.TemporaryDirectory(prefix="moewire-bench-") as folder:
        ranks = [(case, settings, Place(rank, folder, "")) for rank in range(case.ranks)]
        rows = summarise(*launch.run_all(run, ranks, options.timeout))
    say(table(case.title, rows))
    say(tables.idle(quiet))
    return {**case._asdict(), "idle": quiet, "rows": rows}


def run(case: Case, settings: Settings, place: Place) -> list[Samples]:
    """For each delay: when this rank's calls began and its work ended, by way and kind."""
    torch.set_num_threads(1)
    with gloo(case, place) as group:
        work = workload.make(case, settings.seed, place.rank)
        hint = Buffer.get_ep_buffer_size_hint(case.tokens, case.hidden, case.ranks, case.experts)
        with Buffer(group, hint, vector_width=settings.vector_width, **settings.tuning) as buffer:
            rank = _Rank(place.rank, Start(group, None), Moewire(work, buffer))
            rank.measure(DELAYS_MS[0] / 1e3, settings.warmup)
            return [rank.measure(delay / 1e3, settings.repeat) for delay in DELAYS_MS]


class _Rank:
    def __init__(self, number: int, start: Start, ours: Moewire) -> None:
        self._late = number == 1
        self._start, self._ours, self._compute = start, ours, Compute()

    def measure(self, delay: float, repeat: int) -> Samples:
        ours, samples = self._ours, Samples()
        for _ in range(repeat):
            for name, call in (
                ("alone", _nothing),
                ("dispatch blocking", ours.dispatch),
                ("dispatch overlapped", ours.begin_dispatch),
                ("compute", None),
                ("combine blocking", ours.combine_zero_copy),
                ("combine overlapped", ours.begin_combine),
            ):
                if call is None:
                    ours.compute()
                else:
                    samples.setdefault(name, []).append(self._timed(delay, call))
        return samples

    def _timed(self, delay: float, call: Callable[[], Any]) -> tuple[float, float]:
        """When the call began, and when work and hook had ended."""
        begin = self._start.agree()
        time.sleep(max(0.0, begin - time.perf_counter()))
        if self._late:
            self._compute.run(delay)
        called = time.perf_counter()
        hook = call()
        self._compute.run(_WORK_PER_DELAY * delay)
        if isinstance(hook, Hook):
            hook()
        return called, time.perf_counter()


def _nothing() -> None:
    """Instead of a call."""


def summarise(early: list[Samples], late: list[Samples]) -> list[dict[str, Any]]:
    """One row per delay and kind of operation; times are medians in microseconds."""
    return [
        _row(delay, kind, ours, theirs)
        for kind in ("dispatch", "combine")
        for delay, ours, theirs in zip(DELAYS_MS, early, late, strict=True)
    ]


def _row(delay: float, kind: str, early: Samples, late: Samples) -> dict[str, Any]:
    name = f"{kind} overlapped"
    alone, total = _lasted(early["alone"]), _lasted(early[name])
    later = [b[0] - a[0] for a, b in zip(early[name], late[name], strict=True)]
    ratios = [t / max(w, d) for t, w, d in zip(total, alone, later, strict=True)]
    return {
        "operation": kind,
        "delay_ms": delay,
        "late_us": statistics.median(later) * 1e6,
        "work_us": statistics.median(alone) * 1e6,
        "blocking_us": statistics.median(_lasted(early[f"{kind} blocking"])) * 1e6,
        "overlapped_us": statistics.median(total) * 1e6,
        "ratio": statistics.median(ratios),
        "hidden": statistics.median(ratios) <= LIMIT,
        "hidden_share": sum(ratio <= LIMIT for ratio in ratios) / len(ratios),
    }


def _lasted(samples: list[tuple[float, float]]) -> list[float]:
    return [end - begin for begin, end in samples]


def table(title: str, rows: list[dict[str, Any]]) -> str:
    """One line per operation and delay."""
    heading = (
        f"{'one peer is late':18}{'by':>10}{'work alone':>13}{'blocking':>12}{'overlapped':>12}"
        f"{'x':>7}  hidden within 10 %"
    )
    return "\n".join(["", title, heading, *map(_line, rows)])


def _line(row: dict[str, Any]) -> str:
    times = (row["late_us"], row["work_us"], row["blocking_us"], row["overlapped_us"])
    late, work, blocking, overlapped = (f"{us / 1e3:.2f} ms" for us in times)
    hidden = "yes" if row["hidden"] else "no"
    return (
        f"{row['operation']:18}{late:>10}{work:>13}{blocking:>12}{overlapped:>12}"
        f"{row['ratio']:>7.2f}  {hidden}, in {row['hidden_share']:.0%} of the repetitions"
    )
