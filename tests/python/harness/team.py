"""Processes that stay from test to test, forked from one that has imported torch."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import enter, member

_TAIL_BYTES = 6000

# By name, so that the server needs no path of ours. It never loads the Go library.
_PRELOAD = ["torch", "torch.distributed", "numpy"]


class RankFailure(AssertionError):
    """A job failed on some rank; the text has every rank's log and the seed."""


class _Member:
    def __init__(self, folder: Path, index: int, namespace: str | None) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOAD)
        self.log = folder / f"member-{index}.log"
        self.log.touch()
        self._log_start = 0
        self._log_end: int | None = None
        self.without = ""  # says why there is no answer
        self.pipe, theirs = context.Pipe()
        arguments = (dict(os.environ), namespace, theirs, str(self.log))
        self.process = context.Process(target=enter.main, args=arguments)
        self.process.daemon = True
        self.process.start()
        theirs.close()

    def send(self, job: Any) -> None:
        self._log_start, self._log_end = self.log.stat().st_size, None
        self.pipe.send(job)

    def mark(self) -> None:
        """What is logged from now on is what a kill of others has brought about."""
        self._log_end = self.log.stat().st_size
        code = self.process.exitcode
        self.without = "no answer in time" if code is None else f"no answer, ended with {code}"

    def tail(self) -> str:
        """The end of what was logged since the job was sent, up to the mark."""
        data = self.log.read_bytes()[self._log_start : self._log_end]
        return data[-_TAIL_BYTES:].decode(errors="replace")

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


class Team:
    """Runs jobs on the first R of its processes; starts or replaces them as needed.

    ``namespaces``: paths of the network namespaces of the first ones; the rest stay in ours.
    """

    def __init__(self, seed: int, namespaces: Sequence[str] = ()) -> None:
        self.seed = seed
        self._namespaces = namespaces
        self._root = tempfile.TemporaryDirectory(prefix="moewire-tests-")
        self._folder = Path(self._root.name)
        self._members: list[_Member | None] = []
        self._numbers = itertools.count()

    def run(
        self,
        size: int,
        job: Callable[..., Any],
        *args: Any,
        timeout: float = 300.0,  # the first process loads torch
        dies: frozenset[int] = frozenset(),
        seed: int | None = None,
    ) -> list[Any]:
        """The results by rank. Ranks in ``dies`` are expected to end without one."""
        members = self._take(size)
        folder = self._folder / f"run-{next(self._numbers)}"
        folder.mkdir()
        seed = self.seed if seed is None else seed
        for rank, one in enumerate(members):
            one.send((job, member.Rank(rank, size, str(folder), seed), args))
        results = self._collect(members, time.monotonic() + timeout, dies)
        failed = [rank for rank, result in results.items() if result is None or not result[0]]
        failed = [rank for rank in failed if rank not in dies]
        if failed:
            raise RankFailure(self._failure_text(job.__name__, members, results, failed, seed))
        return [results[rank][1] if results[rank] else None for rank in range(size)]

    def close(self) -> None:
        for one in self._members:
            if one is not None:
                one.kill()
        self._root.cleanup()

    def _take(self, size: int) -> list[_Member]:
        self._members += [None] * (size - len(self._members))
        for index in range(size):
            one = self._members[index]
            if one is None or not one.process.is_alive():
                inside = self._namespaces[index] if index < len(self._namespaces) else None
                self._members[index] = _Member(self._folder, next(self._numbers), inside)
        return [one for one in self._members[:size] if one is not None]

    def _collect(
        self, members: list[_Member], deadline: float, dies: frozenset[int]
    ) -> dict[int, Any]:
        results: dict[int, Any] = {}
        while len(results) < len(members):
            for rank, one in enumerate(members):
                if rank not in results and one.pipe.poll(0.002):
                    results[rank] = self._receive(one)
            if any(result is not None and not result[0] for result in results.values()):
                deadline = min(deadline, time.monotonic() + 5)  # the others may wait for it
            if time.monotonic() > deadline:
                break
        self._retire(members, results)
        return {rank: results.get(rank) for rank in range(len(members))}

    def _receive(self, one: _Member) -> Any:
        try:
            return one.pipe.recv()
        except (EOFError, OSError):
            return None

    def _retire(self, members: list[_Member], results: dict[int, Any]) -> None:
        """Lets hanging processes write their stacks, and replaces them before the next run."""
        hung = [one for rank, one in enumerate(members) if rank not in results]
        for one in hung:
            if one.process.pid is not None and one.process.is_alive():
                os.kill(one.process.pid, signal.SIGUSR1)
        if hung:
            time.sleep(0.5)
        # A rank that loses another by the kill goes on without it. Its findings then are no
        # failures of its own: for example a sum without the other's outputs.
        for one in members:
            one.mark()
        for rank, one in enumerate(members):
            if results.get(rank) is None:
                one.kill()
                self._members[self._members.index(one)] = None

    def _failure_text(
        self,
        name: str,
        members: list[_Member],
        results: dict[int, Any],
        failed: list[int],
        seed: int,
    ) -> str:
        lines = [f"{name} failed on rank {failed}; repeat with MOEWIRE_TEST_SEED={seed}"]
        for rank, one in enumerate(members):
            result = results.get(rank)
            state = one.without if result is None else "ok" if result[0] else "failed"
            lines += [f"===== rank {rank}: {state}", one.tail()]
        return "\n".join(lines)
