"""Starts the demo's processes on this machine, without torchrun."""

from __future__ import annotations

import argparse
import multiprocessing
import signal
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from .._base import stdout


def run(options: argparse.Namespace) -> int:
    """Starts the ranks. Returns the exit status of the first that fails, else 0; leaves none
    running."""
    # One server imports torch and transformers, then forks the ranks: one import, not one per
    # rank. The library is loaded after the fork, by each rank's first Buffer.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([f"{__package__}.rank"])
    print(f"starting {options.ranks} processes, importing torch and transformers ...", flush=True)
    with tempfile.TemporaryDirectory(prefix="moewire-demo-") as folder:
        store = str(Path(folder) / "store")
        ranks = [
            context.Process(target=_rank_main, args=(options, rank, store), daemon=True)
            for rank in range(options.ranks)
        ]
        try:
            for process in ranks:
                process.start()
            return _first_failure(ranks)
        finally:
            _stop(ranks)


def _rank_main(options: argparse.Namespace, rank: int, store: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the parent, which ends its ranks
    from . import rank as rank_module

    sys.exit(stdout.run(lambda: rank_module.run_with_store(options, rank, store)))


def _first_failure(ranks: Sequence[BaseProcess]) -> int:
    running = list(ranks)
    while running:
        ended = wait([process.sentinel for process in running])
        for process in [one for one in running if one.sentinel in ended]:
            running.remove(process)
            process.join()
            if process.exitcode:
                # The others would wait for it.
                return process.exitcode if process.exitcode > 0 else 1
    return 0


def _stop(ranks: Sequence[BaseProcess]) -> None:
    started = [process for process in ranks if process.pid is not None]
    for process in started:
        process.kill()  # all at once, so that none has time to report the others' end
    for process in started:
        process.join()
