"""Jobs about statistics and traces of buffers on CUDA."""

from __future__ import annotations

import threading
import time
from typing import Any

from . import cases, jobs_cuda, jobs_observe
from .cases import Case
from .jobs_cuda import Make, Place

PATIENCE_SECONDS = 60.0
TOKENS = 16


def made(seed: int, size: int, fp8: bool = False) -> list[Case]:
    """One case per way to route."""
    rounds = []
    for number, routing in enumerate(cases.ROUTINGS):
        case = Case(size, 4 * size, 3, 256, TOKENS, fp8, routing, (seed, number))
        rounds.append(cases.fill(case, [TOKENS - source for source in range(size)]))
    return rounds


def stats(place: Place, make: Make, rank: int, size: int, seed: int) -> None:
    """Rows, bytes and load are what numpy counts in the routing."""
    for fp8 in (False, True):
        rounds = made(seed, size, fp8)
        options: dict[str, Any] = {"device": "cuda", "prefix": f"stats-{fp8}"}
        with make(jobs_cuda.size_for(rounds), **options) as buffer:
            for case in rounds:
                received = jobs_cuda.dispatch(place, buffer, case, rank, {})
                jobs_cuda.combine(place, buffer, received, {})
            found = buffer.stats()
            want = jobs_observe.expected(rounds, rank)
            jobs_observe.compare(found, want, size, len(rounds), prefaults=False)
            counters = buffer.counters()
            assert counters["num_dispatches"] == counters["num_combines"] == len(rounds)
            assert list(counters["num_rows_sent_to"]) == want["num_rows_sent_to"]
            assert counters["num_bytes_reduced"] == want["selected"] * 2 * want["hidden"]


def not_recorded(place: Place, make: Make, rank: int, seed: int) -> None:
    """With recording off there is nothing, and no harm."""
    rounds = made(seed, 1)[:1]
    with make(jobs_cuda.size_for(rounds), device="cuda") as buffer:
        received = jobs_cuda.dispatch(place, buffer, rounds[0], rank, {})
        jobs_cuda.combine(place, buffer, received, {})
        found = buffer.stats()
        assert not found["recording"] and found["num_records"] == 0
        assert found["dispatch"]["count"] == 0


def traces(
    place: Place, make: Make, rank: int, size: int, seed: int, together: threading.Barrier
) -> dict[str, Any]:
    """Every rank's operations, as each rank sees them."""
    rounds = made(seed, size)
    with make(jobs_cuda.size_for(rounds), device="cuda") as buffer:
        for case in rounds:
            received = jobs_cuda.dispatch(place, buffer, case, rank, {})
            jobs_cuda.combine(place, buffer, received, {})
        together.wait(PATIENCE_SECONDS)
        want = {(r, number) for r in range(size) for number in range(len(rounds))}
        end = time.monotonic() + PATIENCE_SECONDS
        while True:  # the others' watchers need some milliseconds
            everything = buffer.trace(all_ranks=True)
            slices = [event for event in everything["traceEvents"] if event["ph"] == "X"]
            ended = {"dispatch receive", "combine reduce"}
            seen = [(e["pid"], e["args"]["operation"]) for e in slices if e["name"] in ended]
            if sorted(seen) == sorted([*want, *want]):
                break
            assert time.monotonic() < end, (sorted(seen), sorted(want))
            time.sleep(0.01)
        jobs_observe.check_trace(everything, size)
        for event in slices:
            case = rounds[event["args"]["operation"]]
            assert event["args"]["tokens"] == len(case.x[event["pid"]])
            assert event["args"]["outcome"] == "done"
        together.wait(PATIENCE_SECONDS)
        return everything
