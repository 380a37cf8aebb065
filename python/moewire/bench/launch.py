"""Starts the ranks of one case, and collects what they measured."""

from __future__ import annotations

import multiprocessing
import os
import queue
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from typing import Any

from ..errors import MoewireError
from .cases import Case
from .worker import Place, Settings


def run(case: Case, settings: Settings, timeout: float) -> list[dict[str, Any]]:
    """One result per rank. A rank that fails stops the others, and its text is raised."""
    shared = _shared_memory(case)
    try:
        with tempfile.TemporaryDirectory(prefix="moewire-bench-") as folder:
            path = f"/proc/{os.getpid()}/fd/{shared}"
            arguments = [(case, settings, Place(rank, folder, path)) for rank in range(case.ranks)]
            return run_all(_measure, arguments, timeout)
    finally:
        os.close(shared)


def run_overhead(timeout: float) -> dict[str, float]:
    """What calls cost, measured by one process alone."""
    result: dict[str, float] = run_all(_overhead, [()], timeout)[0]
    return result


def _measure(case: Case, settings: Settings, place: Place) -> dict[str, Any]:
    from . import worker

    return worker.run(case, settings, place)


def _overhead() -> dict[str, float]:
    from . import overhead

    return overhead.measure()


def run_all(
    function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], timeout: float
) -> list[Any]:
    """One process for each element of ``arguments``; what ``function`` returned in each."""
    context = multiprocessing.get_context("spawn")
    results: Any = context.Queue()
    ranks = [
        # No daemons: a peer may have processes of its own.
        context.Process(target=_rank_main, args=(rank, function, words, results))
        for rank, words in enumerate(arguments)
    ]
    try:
        for process in ranks:
            process.start()
        return _collect(ranks, results, time.monotonic() + timeout)
    finally:
        _stop(ranks)


def _rank_main(
    rank: int, function: Callable[..., Any], arguments: tuple[Any, ...], results: Any
) -> None:
    try:
        results.put((rank, function(*arguments), None))
    except BaseException as error:
        import traceback

        results.put((rank, None, f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))


def _shared_memory(case: Case) -> int:
    from . import slab

    file = os.memfd_create("moewire-bench")
    os.ftruncate(file, slab.shared_bytes(case.ranks, case.tokens, case.experts, case.hidden))
    return file


def _collect(ranks: Sequence[BaseProcess], results: Any, deadline: float) -> list[Any]:
    found: dict[int, Any] = {}
    while len(found) < len(ranks):
        rank, result, failure = _next(ranks, results, deadline)
        if failure is not None:
            raise MoewireError(f"rank {rank} failed: {failure}")
        found[rank] = result
    return [found[rank] for rank in sorted(found)]


def _next(
    ranks: Sequence[BaseProcess], results: Any, deadline: float
) -> tuple[int, Any, str | None]:
    while True:
        try:
            item: tuple[int, Any, str | None] = results.get(timeout=0.2)
            return item
        except queue.Empty:
            pass
        for rank, process in enumerate(ranks):
            if process.exitcode not in (None, 0):
                return rank, None, f"exit status {process.exitcode}"
        if time.monotonic() > deadline:
            raise MoewireError("the ranks did not finish before --timeout")


def _stop(ranks: Sequence[BaseProcess]) -> None:
    deadline = time.monotonic() + 5
    for process in ranks:
        if process.pid is not None:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
