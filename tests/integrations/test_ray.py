"""examples/python/ray_ranks.py in a Ray of its own: ranks are actors, one is killed and replaced.

Ray listens on loopback alone while it runs, and leaves nothing behind.
"""

from __future__ import annotations

import ipaddress
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import engine_venvs
import psutil
import pytest
from watched import ROOT, Program

EXAMPLE = ROOT / "examples" / "python" / "ray_ranks.py"
RANKS, KILLED = 3, 1
SECONDS = 480  # Ray starts a dozen processes; on a busy machine the whole takes 100 s

pytestmark = [pytest.mark.multirank, pytest.mark.slow]


class Family:
    """All processes below one, and where they listen, as long as it runs."""

    def __init__(self, program: Program) -> None:
        self.processes: set[psutil.Process] = set()
        self.addresses: set[str] = set()
        self._program = program
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        root = psutil.Process(self._program.process.pid)
        while not self._over.wait(0.2):
            try:
                self.processes.update([root, *root.children(recursive=True)])
            except psutil.NoSuchProcess:
                continue
            for process in list(self.processes):
                self._look_at(process)

    def _look_at(self, process: psutil.Process) -> None:
        try:
            sockets = process.net_connections("inet")
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return
        self.addresses.update(one.laddr.ip for one in sockets if one.status == psutil.CONN_LISTEN)

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def end(self) -> None:
        """Kills what is left."""
        self.stop()
        for process in self.processes:
            if process.is_running():
                process.kill()
        self._program.end()


@pytest.fixture
def family(tmp_path: Path) -> Iterator[tuple[Program, Family]]:
    python = engine_venvs.python_of("ray", own_torch=False)
    home = {"HOME": str(tmp_path)}  # Ray leaves the key of its cluster there
    program = Program([str(python), str(EXAMPLE)], tmp_path / "output", home)
    one = Family(program)
    yield program, one
    one.end()


def _is_loopback(address: str) -> bool:
    found = ipaddress.ip_address(address)
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback


def test_a_killed_actor_is_replaced(family: tuple[Program, Family]) -> None:
    program, processes = family
    status = program.ended(SECONDS)
    processes.stop()
    assert status == 0, program.said()
    assert "all ranks are back" in program.said()
    _check_steps(program.said())
    assert processes.addresses and all(map(_is_loopback, processes.addresses)), processes.addresses
    _, alive = psutil.wait_procs(processes.processes, timeout=20)
    assert len(processes.processes) > RANKS and not alive


def _check_steps(said: str) -> None:
    found = {
        (int(rank), int(step)): (int(epoch), [int(one) for one in active.split(", ")])
        for rank, step, epoch, active in re.findall(
            r"^rank (\d), step (\d): epoch (\d), active_ranks \[([\d, ]+)\]$", said, re.MULTILINE
        )
    }
    every, fewer = [1] * RANKS, [int(rank != KILLED) for rank in range(RANKS)]
    expected = {}
    for step in range(6):
        lost = step in (2, 3)
        for rank in range(RANKS):
            if not (lost and rank == KILLED):
                expected[rank, step] = (1 + (step > 3), fewer if lost else every)
    assert found == expected, said
