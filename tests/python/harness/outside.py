"""Ranks that run for as long as a test wants, seen from outside."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import jobs_observe
from .team import Team

Environment = dict[str, str]


class Ranks:
    """Processes that dispatch and combine until they are told to stop; the last one may die.

    ``around``: what ``jobs_observe.loop`` runs in, if in anything, with its arguments.
    """

    def __init__(
        self,
        team: Team,
        folder: Path,
        environment: Environment,
        size: int,
        *around: Any,
        unresponsive_after_us: int = 0,
    ) -> None:
        self.folder, self.environment = folder, environment
        options = {"dies": frozenset({size - 1}), "timeout": 180.0}
        arguments = (size, *around, jobs_observe.loop, str(folder), unresponsive_after_us)
        self._run = threading.Thread(target=team.run, args=arguments, kwargs=options)
        self._run.start()
        self.pids = [self._pid(rank) for rank in range(size)]

    def _pid(self, rank: int) -> int:
        path = self.folder / f"pid-{rank}"
        deadline = time.monotonic() + 150
        while not (path.exists() and path.read_text()):
            assert time.monotonic() < deadline, f"rank {rank} did not start"
            time.sleep(0.01)
        return int(path.read_text())

    def log(self, rank: int) -> Path:
        return self.folder / f"log-{rank}"

    def lines(self, rank: int, word: str) -> list[str]:
        return [line for line in self.log(rank).read_text().splitlines() if word in line]

    def moewire(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "moewire", *arguments]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout

    def top(self, rank: int | None = None) -> dict[str, Any] | None:
        """The block of one of these processes, of any: others may run on this machine, too."""
        found = json.loads(self.moewire("top", "--once", "--json", "--interval", "0.3"))
        wanted = set(self.pids if rank is None else [self.pids[rank]])
        for group in found:
            if {rank["pid"] for rank in group["ranks"]} & wanted:
                return group  # type: ignore[no-any-return]
        return None

    def until(
        self, right: Callable[[dict[str, Any]], bool], rank: int | None = None
    ) -> dict[str, Any]:
        """What `top` says as soon as it is right."""
        deadline = time.monotonic() + 60
        group = None
        while time.monotonic() < deadline:
            group = self.top(rank)
            if group is not None and right(group):
                return group
            time.sleep(0.1)
        raise AssertionError(f"`moewire top` still says {group}")

    def stop(self) -> None:
        (self.folder / "stop").touch()
        self.signal(len(self.pids) - 1, signal.SIGCONT)
        self._run.join()

    def signal(self, rank: int, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pids[rank], number)
