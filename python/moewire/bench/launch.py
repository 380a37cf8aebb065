"""Starts the ranks, and collects what they measured."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import queue
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from ..errors import MoewireError
from . import floor


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """One result per rank. A rank that fails stops the others, and its text is raised."""
    context = multiprocessing.get_context("spawn")
    results: Any = context.Queue()
    shared = _shared_memory(options)
    with tempfile.TemporaryDirectory(prefix="moewire-bench-") as folder:
        ranks = [
            context.Process(
                target=_rank_main,
                args=(options, rank, str(Path(folder) / "store"), os.getpid(), shared, results),
                daemon=True,
            )
            for rank in range(options.ranks)
        ]
        try:
            for process in ranks:
                process.start()
            return _collect(ranks, results, time.monotonic() + options.timeout)
        finally:
            _stop(ranks)
            os.close(shared)


def _shared_memory(options: argparse.Namespace) -> int:
    file = os.memfd_create("moewire-bench")
    size = floor.shared_bytes(options.ranks, options.tokens, options.experts, options.hidden)
    os.ftruncate(file, size)
    return file


def _rank_main(
    options: argparse.Namespace, rank: int, store: str, parent: int, shared: int, results: Any
) -> None:
    try:
        from . import worker

        results.put((rank, worker.run(options, rank, store, f"/proc/{parent}/fd/{shared}"), None))
    except BaseException as error:
        import traceback

        results.put((rank, None, f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))


def _collect(ranks: Sequence[BaseProcess], results: Any, deadline: float) -> list[dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
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
    for process in ranks:
        if process.pid is not None:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
