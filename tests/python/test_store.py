"""Waits for a store end by their deadline, also when the store's server answers nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any, cast

import pytest
import torch.distributed as dist

from moewire import Buffer, DeadlineError
from moewire._rendezvous.by_store import StoreRendezvous
from moewire._rendezvous.clock import Clock
from moewire._rendezvous.store import METHODS, BoundedStore, describe
from moewire.errors import MoewireError, NoResourceError, PeerLostError

_SERVER = """
import sys, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""
TIMEOUT_US = 400_000
# A quiet machine needs less than 0.1 s beyond the deadline; this one may be busy.
LATE_S = 1.0


class Server:
    """A TCPStore's server in a process of its own, which can be stopped."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def client(self) -> dist.TCPStore:
        # Its own timeout is longer than this test waits for anything.
        timeout = timedelta(seconds=300)
        return dist.TCPStore("127.0.0.1", self.port, is_master=False, timeout=timeout)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        while self._state() != "T":
            time.sleep(0.001)

    def _state(self) -> str:
        with open(f"/proc/{self._process.pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0]

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


class StopsAt:
    """A store with a server that is stopped before the n-th call from ``arm`` on."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.inner = server.client()
        self.left = -1
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name not in METHODS:
            return found

        def call(*args: Any) -> Any:
            self.calls += 1
            if self.left == 0:
                self.server.stop()
            self.left -= 1
            return found(*args)

        return call


@pytest.fixture(scope="module")
def one_server() -> Iterator[Server]:
    made = Server()
    yield made
    made.end()


@pytest.fixture
def server(one_server: Server) -> Iterator[Server]:
    yield one_server
    one_server.go_on()


def _late_s(call: Callable[[], object], server: Server) -> float:
    """How long after its deadline a call has raised its error."""
    begin = time.monotonic()
    with pytest.raises(DeadlineError, match=f"at 127.0.0.1:{server.port}.*0.4 s of"):
        call()
    late = time.monotonic() - begin - TIMEOUT_US / 1e6
    assert late < LATE_S
    return late


def _no_caller_is_left() -> None:
    until = time.monotonic() + 10
    while any(thread.name == "moewire store" for thread in threading.enumerate()):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_construction_with_a_store_that_stops(server: Server) -> None:
    """Before each of its calls in turn; afterwards the same rank constructs as if for the first
    time, and so do the others."""
    store = StopsAt(server)
    construct(store, "count", 20_000_000).close()
    late = []
    for call in range(store.calls - 1):  # the last is a set, which does not wait for its answer
        store.left = call
        late.append(_late_s(partial(construct, store, f"stop {call}"), server))
        with ThreadPoolExecutor(1) as pool:  # while the store still hangs: no second thread of it
            again = pool.submit(construct, store, f"stop {call}", 20_000_000)
            time.sleep(0.05)
            server.go_on()
            again.result(30).close()
    _no_caller_is_left()
    print(f"at most {max(late) * 1e3:.0f} ms after the deadline, of {len(late)} calls")


def construct(store: Any, prefix: str, timeout_us: int = TIMEOUT_US) -> Buffer:
    return Buffer.from_store(store, 0, 1, prefix=prefix, connect_timeout_us=timeout_us)


def test_update_with_a_store_that_stops(server: Server) -> None:
    """Before each of its calls in turn; afterwards the group updates again."""
    store = StopsAt(server)
    with construct(store, "group", 20_000_000) as buffer:
        before = store.calls
        buffer.update_ep_member()
        late = []
        for call in range(store.calls - before - 1):  # the last is a set
            store.left = call
            late.append(_late_s(lambda: buffer.update_ep_member(timeout_us=TIMEOUT_US), server))
            server.go_on()
            buffer.update_ep_member(timeout_us=20_000_000)
            assert buffer.members() == [0]
    _no_caller_is_left()
    print(f"at most {max(late) * 1e3:.0f} ms after the deadline, of {len(late)} calls")


def test_both_ranks_of_a_group_with_a_store_that_stops(server: Server) -> None:
    """It stops while they update, for good: both raise, and both buffers close."""
    stores = [server.client() for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        buffers = list(
            pool.map(lambda r: Buffer.from_store(stores[r], r, 2, prefix="two"), range(2))
        )
        server.stop()
        updates = [
            pool.submit(_late_s, lambda b=b: b.update_ep_member(timeout_us=TIMEOUT_US), server)
            for b in buffers
        ]
        for update in updates:
            update.result(30)
        # With the same store again: its first call is still not answered.
        _late_s(lambda: buffers[0].update_ep_member(timeout_us=TIMEOUT_US), server)
        callers = [t for t in threading.enumerate() if t.name == "moewire store"]
        assert len(callers) == 2
        for buffer in buffers:
            buffer.close()
    server.go_on()
    _no_caller_is_left()


@pytest.mark.parametrize("method", METHODS)
def test_each_call(method: str, server: Server) -> None:
    """Bounds the calls that torch's own timeouts do not bound."""
    args: dict[str, tuple[Any, ...]] = {
        "add": ("n", 1),
        "set": ("k", b"v"),
        "get": ("absent",),
        "check": (["k"],),
        "compare_set": ("k", "", "v"),
        "delete_key": ("k",),
    }
    store = BoundedStore(server.client())
    server.stop()
    call = getattr(store, method, None) or (lambda *a: store._call(method, *a))
    with store.until(Clock(TIMEOUT_US), "timeout_us"):
        if method == "set":  # it is sent, and nothing is answered
            call(*args[method])
            method, call = "check", store.check
        _late_s(lambda: call(*args[method]), server)
    server.go_on()
    if method == "get":
        server.client().set("absent", b"")
    _no_caller_is_left()


def test_what_the_store_raises_is_raised() -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            def call(*args: Any) -> Any:
                raise RuntimeError("connection reset")

            return call

    store = BoundedStore(Broken())
    with store.until(Clock(TIMEOUT_US), "timeout_us"), pytest.raises(RuntimeError, match="reset"):
        store.add("n", 1)
    _no_caller_is_left()


def test_stores_are_named(server: Server, tmp_path: Any) -> None:
    file = os.path.join(tmp_path, "store")
    inner = server.client()
    assert describe(inner) == f"TCPStore at 127.0.0.1:{server.port}"
    assert describe(dist.PrefixStore("a", dist.PrefixStore("b", inner))) == describe(inner)
    assert describe(dist.FileStore(file, 1)) == f"FileStore in {file}"
    assert describe(dist.HashStore()) == "HashStore"


class _Fails:
    """A runtime that cannot connect."""

    def __init__(self, error: MoewireError) -> None:
        self.error = error

    def metadata(self) -> bytes:
        return b"here"

    def connect(self, everybody: list[bytes], timeout_us: int) -> None:
        raise self.error


def test_a_rank_repeats_why_another_one_has_given_up() -> None:
    """Nothing listens where a rank has given up: what that rank lacked is the reason."""
    store = dist.HashStore()
    short = "socket: too many open files, limit 1024"
    gone = "rank 1 does not listen any more"
    failing = [_Fails(PeerLostError(gone)), _Fails(NoResourceError(short))]

    def meet(rank: int) -> str:
        rendezvous = StoreRendezvous(store, rank, 2, "why")
        with pytest.raises(type(failing[rank].error)) as raised:
            rendezvous.construct(cast("Any", failing[rank]), frozenset({0, 1}), 20_000_000)
        return str(raised.value)

    with ThreadPoolExecutor(2) as pool:
        texts = list(pool.map(meet, range(2)))
    assert texts == [f"{gone}; rank 1 says: {short}", short]
    _no_caller_is_left()


class _Ends(_Fails):
    """A runtime that cannot connect, because the store's host is gone with a rank."""

    def __init__(self, error: MoewireError, end: Callable[[], None]) -> None:
        super().__init__(error)
        self.end = end

    def connect(self, everybody: list[bytes], timeout_us: int) -> None:
        self.end()
        raise self.error


@pytest.mark.parametrize("how", ["end", "stop"])
def test_a_store_that_is_gone_does_not_hide_why_ranks_could_not_connect(how: str) -> None:
    """The rank that has the store has died: the error is that, not that nothing answers."""
    made = Server()
    try:
        gone = "rank 1 cannot come: its process has ended"
        store = made.client()
        store.set("gone/1/0/at/1", "here")  # of rank 1
        rendezvous = StoreRendezvous(store, 0, 2, "gone")
        runtime = _Ends(PeerLostError(gone), getattr(made, how))
        begin = time.monotonic()
        with pytest.raises(PeerLostError, match=gone):
            rendezvous.construct(cast("Any", runtime), frozenset({0, 1}), TIMEOUT_US)
        assert time.monotonic() - begin < TIMEOUT_US / 1e6 + LATE_S
    finally:
        made.end()
    _no_caller_is_left()


class _Connects:
    """A runtime with a peer that has come and connected, and then says nothing more."""

    def __init__(self, store: dist.HashStore) -> None:
        self.store = store
        self.installed = False

    def metadata(self) -> bytes:
        return b"here"

    def update(self) -> None:
        self.store.set("group/1/1/at/1", "here")  # of rank 1, in round 1

    def connect(self, everybody: list[bytes], timeout_us: int) -> None:
        assert everybody == [b"here", b"here"]

    def install(self) -> None:
        self.installed = True


def test_a_rank_that_stops_before_its_vote_holds_up_nobody() -> None:
    """An update waits for votes until its deadline, and no longer."""
    store = dist.HashStore()
    rendezvous = StoreRendezvous(store, 0, 2, "group")
    rendezvous._instance = 1
    runtime = _Connects(store)
    begin = time.monotonic()
    with pytest.raises(DeadlineError, match="ranks of the last attempt: 0, 1"):
        rendezvous.update(cast("Any", runtime), frozenset({0, 1}), TIMEOUT_US)
    assert time.monotonic() - begin < TIMEOUT_US / 1e6 + LATE_S
    assert not runtime.installed


def test_a_time_that_no_clock_has_is_for_ever() -> None:
    """A wait takes at most some 292 years in seconds; longer ones were an OverflowError."""
    with Buffer.from_store(dist.HashStore(), 0, 1, connect_timeout_us=1 << 62) as buffer:
        assert buffer.members() == [0]
