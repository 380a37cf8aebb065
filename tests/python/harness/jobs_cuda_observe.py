"""Jobs about statistics and traces of buffers on CUDA."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from moewire._observe import live

from . import cases, jobs_cuda, jobs_observe
from .cases import Case
from .jobs_cuda import Make, Place
from .member import Rank

TIMEOUT_SECONDS = 120.0
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
        assert not buffer.counters()["num_dispatches"]


def traces(
    place: Place, make: Make, rank: int, size: int, seed: int, together: threading.Barrier
) -> dict[str, Any]:
    """Every rank's operations, as each rank sees them."""
    rounds = made(seed, size)
    with make(jobs_cuda.size_for(rounds), device="cuda") as buffer:
        for case in rounds:
            received = jobs_cuda.dispatch(place, buffer, case, rank, {})
            jobs_cuda.combine(place, buffer, received, {})
        together.wait(TIMEOUT_SECONDS)
        want = {(r, number) for r in range(size) for number in range(len(rounds))}
        end = time.monotonic() + TIMEOUT_SECONDS
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
        together.wait(TIMEOUT_SECONDS)
        return everything


def until(found: Callable[[], bool]) -> None:
    """Waits for what another thread or process does."""
    end = time.monotonic() + TIMEOUT_SECONDS
    while not found():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.01)


def waited_for(rank: int) -> Callable[[], bool]:
    """Whether the memory of this process's rank 0 shows that it waits for a rank."""

    def shows() -> bool:
        ranks = [one for group in live.find().groups for one in group.ranks]
        return any(one.pid == os.getpid() and one.area.waits_for == [rank] for one in ranks)

    return shows


def slow(rank: Rank, driver: str) -> list[str]:
    """Rank 1 comes late. Meanwhile rank 0 calls nothing, and says so all the same."""
    heard = jobs_observe.Heard(os.path.join(rank.folder, f"heard-{rank.rank}"))
    logging.getLogger("moewire").addHandler(heard)
    with jobs_cuda.in_this_process(driver, rank) as place:
        case = made(rank.seed, 2)[0]
        size = jobs_cuda.size_for([case])
        with rank.buffer(size, device="cuda", slow_after_us=20_000) as buffer:
            x, topk = jobs_cuda.inputs(place, case, rank.rank)
            given = (x, topk, None, case.num_max, case.num_experts, jobs_cuda.TIMEOUT_US)
            if rank.rank == 1:
                rank.meet("heard")
            result = buffer.dispatch(*given, False)
            if rank.rank == 0:
                until(waited_for(1))
                until(lambda: bool(heard.lines))
                rank.meet("heard")
            place.synchronize()
            found = buffer.stats()
            assert found["dispatch"]["count"] == 1 and found["num_events"] >= 1 - rank.rank
            result[2].release()
            rank.meet("end")
    logging.getLogger("moewire").removeHandler(heard)
    return heard.lines
