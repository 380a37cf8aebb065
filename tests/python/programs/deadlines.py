"""A rank of ``test_deadlines.py``: it reads calls, one a line, and says how each has ended."""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

import moewire

RANKS, TOKENS, HIDDEN, EXPERTS, TOPK = 2, 4, 128, 4, 2


class Rank:
    def __init__(self, rank: int, port: int, transport: str) -> None:
        self.rank = rank
        self.store = dist.TCPStore("127.0.0.1", port, is_master=False)
        self.settings: dict[str, Any] = {"transport": transport}
        if transport != "shm":
            self.settings["listen"] = "127.0.0.1"
        self.x = torch.ones(TOKENS, HIDDEN, dtype=torch.bfloat16)
        self.ids = torch.arange(TOKENS * TOPK).view(TOKENS, TOPK) % EXPERTS
        self.weights = torch.ones(TOKENS, TOPK)
        self.num_bytes = moewire.Buffer.get_ep_buffer_size_hint(TOKENS, HIDDEN, RANKS, EXPERTS)
        self.made = 0
        self.handle: Any = None
        self.rows: Any = None

    def open(self, timeout_us: int) -> None:
        self.buffer = self._make("group", timeout_us)

    def _make(self, prefix: str, timeout_us: int) -> moewire.Buffer:
        return moewire.Buffer.from_store(
            self.store,
            self.rank,
            RANKS,
            max(self.num_bytes, 4 << 20),
            prefix=prefix,
            connect_timeout_us=timeout_us,
            **self.settings,
        )

    def construct(self, timeout_us: int) -> None:
        self.made += 1
        self._make(f"alone {self.rank} {self.made}", timeout_us).close()

    def update(self, timeout_us: int) -> None:
        self.handle = self.rows = None
        self.buffer.update_ep_member(timeout_us=timeout_us)

    def dispatch(self, timeout_us: int, **options: bool) -> Any:
        found = self.buffer.dispatch(
            self.x, self.ids, None, TOKENS, EXPERTS, timeout_us, use_fp8=False, **options
        )
        self.rows, self.handle = found[0], found[2]
        return found

    def dispatch_event(self, timeout_us: int) -> None:
        event = self.dispatch(timeout_us, async_finish=True)[3]
        event.current_stream_wait()

    def combine(self, timeout_us: int, **options: bool) -> Any:
        return self.buffer.combine(
            self.rows.clone(), self.ids, self.weights, None, timeout_us, self.handle, **options
        )

    def combine_hook(self, timeout_us: int) -> None:
        self.combine(timeout_us, return_recv_hook=True)[2]()

    def combine_sent(self, timeout_us: int) -> None:
        self.hook = self.combine(timeout_us, return_recv_hook=True)[2]

    def combine_buffer(self, timeout_us: int) -> None:
        self.buffer.get_next_combine_buffer(self.handle, timeout_us=timeout_us)

    def make_routing(self, timeout_us: int) -> None:
        self.routing = self.buffer.make_routing(self.ids, EXPERTS, timeout_us=timeout_us)

    def scatter(self, timeout_us: int) -> None:
        self.rows = self.buffer.scatter(self.routing, self.x, timeout_us=timeout_us).rows

    def gather(self, timeout_us: int) -> None:
        self.buffer.gather(self.routing, self.rows, timeout_us=timeout_us)

    def dispatch_flat(self, timeout_us: int) -> None:
        found = self.buffer.dispatch_flat(
            self.x, self.ids, self.weights, TOKENS, EXPERTS, timeout_us=timeout_us
        )
        self.rows, self.handle = found.recv_x, found.handle

    def combine_flat(self, timeout_us: int) -> None:
        self.buffer.combine_flat(self.rows.clone(), self.handle, timeout_us=timeout_us)


@contextlib.contextmanager
def failing(failure: str) -> Iterator[None]:
    if "no descriptors" in failure:
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
    elif failure == "signals":
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    else:
        yield


def main() -> None:
    rank = Rank(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    for line in sys.stdin:
        call, timeout_us, failure = json.loads(line)
        error = None
        with failing(failure):
            begin = time.monotonic()
            try:
                getattr(rank, call)(timeout_us)
            except moewire.MoewireError as failed:
                error = f"{type(failed).__name__}: {failed}"
            took = time.monotonic() - begin
        print(json.dumps({"took_s": took, "error": error}), flush=True)


main()
