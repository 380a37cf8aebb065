"""Every call with a deadline returns by it, whatever fails: a table of calls and failures.

Two ranks, each in a process of its own, by shared memory and by TCP. The peer of a call is
stopped, or does nothing; the process of the caller has no descriptor left, or is interrupted by
signals all the time. ``test_store.py`` has a store that is stopped, and tests of the library
(``shortage_test.go`` of ``core/...``) the errors that cannot be had here without root.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

PROGRAM = Path(__file__).parent / "programs" / "deadlines.py"
TIMEOUT_US = 300_000
# A quiet machine needs less than 0.1 s beyond the deadline; this one may be busy.
LATE_S = 1.0

CALLS = (
    "construct",
    "update",
    "dispatch",
    "dispatch_event",
    "dispatch_flat",
    "combine",
    "combine_hook",
    "combine_flat",
    "combine_buffer",
    "make_routing",
    "scatter",
    "gather",
)
# What both ranks do before a call.
FIRST = {
    "combine": ("dispatch",),
    "combine_hook": ("dispatch",),
    "combine_flat": ("dispatch_flat",),
    "combine_buffer": ("dispatch",),
    "scatter": ("make_routing",),
    "gather": ("make_routing", "scatter"),
}
RENDEZVOUS = ("construct", "update")
FAILURES = ("stopped", "idle", "no descriptors", "signals", "stopped, no descriptors")
IN_ALL = ("idle", "stopped, no descriptors")


class Rank:
    """A rank in a process that does what it is told, one thing after another."""

    def __init__(self, rank: int, port: int, transport: str) -> None:
        command = [sys.executable, str(PROGRAM), str(rank), str(port), transport]
        environment = {**os.environ, "MOEWIRE_KEY": bytes(range(32)).hex()}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def do(self, call: str, timeout_us: int = 20_000_000, failure: str = "") -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps([call, timeout_us, failure]), file=self.process.stdin, flush=True)
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


class Pair:
    def __init__(self, transport: str) -> None:
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.ranks = [Rank(r, self.store.port, transport) for r in range(2)]

    def end(self) -> None:
        for rank in self.ranks:
            rank.end()

    def both(self, call: str) -> None:
        with ThreadPoolExecutor(2) as pool:
            results = list(pool.map(lambda rank: rank.do(call), self.ranks))
        assert [found["error"] for found in results] == [None, None], call

    def prepare(self, call: str) -> None:
        self.both("update")
        for before in FIRST.get(call, ()):
            self.both(before)
        if call == "combine_buffer":  # of a combine with outputs that the peer has not read
            assert self.ranks[0].do("combine_sent")["error"] is None


@pytest.fixture(scope="module", params=["shm", "tcp"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    made = Pair(request.param)
    try:
        made.both("open")
        yield made
    finally:
        made.end()


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(failure, marks=[pytest.mark.all] if failure in IN_ALL else [])
        for failure in FAILURES
    ],
)
def test_calls_return_by_their_deadline(failure: str, pair: Pair) -> None:
    late: dict[str, str] = {}
    caller, peer = pair.ranks
    for call in CALLS:
        pair.prepare(call)
        if failure.startswith("stopped"):
            peer.process.send_signal(signal.SIGSTOP)
        found = caller.do(call, TIMEOUT_US, failure)
        peer.process.send_signal(signal.SIGCONT)
        late_s = found["took_s"] - TIMEOUT_US / 1e6
        assert late_s < LATE_S, (call, found)
        late[call] = f"{late_s * 1e3:+.0f} ms"
        if found["error"] is not None and call in RENDEZVOUS and "descriptors" in failure:
            assert "too many open files, limit 3 (" in found["error"], (call, found)
        assert call != "construct" or found["error"] is not None
    print(failure, late)
