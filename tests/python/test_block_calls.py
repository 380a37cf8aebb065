"""What holds for all calls of ``moewire.store.Client``: timeouts, threads, refusals."""

from __future__ import annotations

import logging
import re
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from random import Random

import numpy
import pytest

from harness.block_server import Served
from moewire.store import Client

LONG_US = 60_000_000
SHORT_US = 100_000
CALLS: dict[str, Callable[[Client, int], object]] = {
    "put": lambda c, us: c.put("other", b"b", timeout_us=us),
    "batch_put": lambda c, us: c.batch_put(["other"], [b"b"], timeout_us=us),
    "get": lambda c, us: c.get("key", timeout_us=us),
    "batch_get_into": lambda c, us: c.batch_get_into(["key"], [bytearray(9)], timeout_us=us),
    "exists": lambda c, us: c.exists(["key"], timeout_us=us),
    "prefix": lambda c, us: c.prefix(["key"], timeout_us=us),
    "delete": lambda c, us: c.delete(["key"], timeout_us=us),
    "touch": lambda c, us: c.touch(["key"], timeout_us=us),
    "pin": lambda c, us: c.pin(["key"], 1, timeout_us=us),
    "lookup": lambda c, us: c.lookup(["key"], timeout_us=us),
    "lengths": lambda c, us: c.lengths(["key"], timeout_us=us),
    "list": lambda c, us: list(c.list(timeout_us=us)),
    "stats": lambda c, us: [*c.stats(timeout_us=us)["servers"].values()],
    "flush": lambda c, us: c.flush(timeout_us=us),
}
MISSES: dict[str, object] = {
    "put": False,
    "batch_put": [False],
    "get": None,
    "batch_get_into": [-1],
    "exists": [False],
    "prefix": 0,
    "delete": 0,
    "touch": None,
    "pin": [False],
    "lookup": [None],
    "lengths": [-1],
    "list": [],
    "stats": [None],
    "flush": False,
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("calls"), "--capacity", "64MiB") as server:
        yield server


@pytest.mark.parametrize("name", CALLS)
def test_each_call_has_a_timeout_of_its_own(served: Served, name: str) -> None:
    with served.client("timeouts", timeout_us=LONG_US) as client:
        assert client.put("key", b"b")
        served.stop()
        try:
            begun = time.monotonic()
            assert CALLS[name](client, SHORT_US) == MISSES[name]
            assert SHORT_US / 1e6 <= time.monotonic() - begun < LONG_US / 2e6
        finally:
            served.go_on()


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_timeout_is_refused(served: Served, name: str) -> None:
    with served.client("timeouts") as client:
        for wrong in (0, -1, 3_600_000_001):
            with pytest.raises(ValueError, match=f"timeout_us: {wrong} given; allowed: 1 to"):
                CALLS[name](client, wrong)


def test_an_open_breaker_costs_less_than_a_millisecond(served: Served) -> None:
    """The median of many calls: on a busy machine some of them wait for a processor."""
    with Served(served.folder, key=served.key) as server, server.client("breaker") as client:
        assert client.put("key", b"b")
        server.kill()
        end = time.monotonic() + 20
        while client.stats()["servers_up"]:
            assert time.monotonic() < end
        for name in CALLS:
            times = []
            for _ in range(200):
                begun = time.perf_counter()
                found = CALLS[name](client, LONG_US)
                times.append(time.perf_counter() - begun)
                assert found == MISSES[name]
            assert statistics.median(times) < 1e-3, name


def test_a_block_larger_than_a_segment(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    """A segment has 1 MiB here. Both numbers are said: once by a warning, and by completions."""
    numbers = rf"{served.address}: .*: 1048576 bytes given; allowed: 0 to 10\d{{5}},"
    large = bytes(1 << 20)
    with caplog.at_level(logging.WARNING, "moewire"), served.client("large") as client:
        for _ in range(3):
            assert not client.put("large", large)
        assert client.batch_put(["small", "large"], [b"b", large]) == [True, False]
        (line,) = caplog.messages
        submitted = (
            client.submit_put(["a", "large"], [b"a", large]),
            client.submit_put(["c"], [b"c"]),
        )
        done = {}
        end = time.monotonic() + 20
        while len(done) < 2:
            assert time.monotonic() < end
            done |= {one.id: one for one in client.drain()}
        first, second = (done[number] for number in submitted)
        assert (first.ok, second.ok) == ([True, False], [True])
        assert second.error is None
        for said in (line, str(first.error)):
            assert re.search(numbers, said), said
        assert client.stats()["replies"]["too large"] == 5


def test_threads(served: Served, seed: int) -> None:
    """Eight threads make calls of all kinds of one client; each finds what it has put."""
    problems: list[str] = []

    def work(client: Client, number: int) -> None:
        source = Random(seed + number)
        mine: dict[str, bytes] = {}
        try:
            for turn in range(120):
                _step(client, source, f"{number}/{turn}", mine)
        except BaseException as error:
            problems.append(f"thread {number}: {error!r}")
            raise

    with served.client("threads", timeout_us=LONG_US) as client:
        threads = [threading.Thread(target=work, args=(client, n)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        assert problems == []
        assert client.stats()["bad_tags"] == 0


def _step(client: Client, source: Random, key: str, mine: dict[str, bytes]) -> None:
    data = source.randbytes(source.choice((0, 1, 5000, 20_000)))
    assert client.put(key, data)
    mine[key] = data
    known = source.choice([*mine])
    match source.randrange(7):
        case 0:
            assert client.get(known) == mine[known]
        case 1:
            into = bytearray(len(mine[known]))
            assert client.batch_get_into([known, "none"], [into, bytearray(1)]) == [len(into), -1]
            assert into == mine[known]
        case 2:
            assert client.exists([known, "none"]) == [True, False]
            assert client.lengths([known, "none"]) == [len(mine[known]), -1]
        case 3:
            (lease,) = client.lookup([known])
            assert lease is not None
            with lease as view:
                assert view == mine[known]
        case 4:
            assert client.delete([known]) == 1
            del mine[known]
            assert client.get(known) is None
        case 5:
            begin = key.partition("/")[0] + "/"
            assert sorted(client.list(begin)) == sorted(name.encode() for name in mine)
        case 6:
            assert client.submit_exists([known]) > 0
            client.drain()  # perhaps another thread's
            assert client.stats()["servers_up"] == 1


def test_a_lease_is_like_a_memoryview(served: Served) -> None:
    """In place and copied alike; it is a buffer where Python lets a class be one."""
    for transport in ("auto", "tcp"):
        with served.client("lease", transport=transport) as client:
            assert client.put("key", b"some bytes")
            (lease,) = client.lookup(["key"])
            assert lease is not None
            assert (len(lease), lease[0], lease[-5:], bytes(lease)) == (
                10,
                115,
                b"bytes",
                b"some bytes",
            )
            if sys.version_info >= (3, 12):
                view = memoryview(lease)
                assert view == b"some bytes"
                assert view.readonly
                with pytest.raises(BufferError):
                    lease.release()
                view.release()
            else:
                with pytest.raises(TypeError, match="bytes-like"):
                    memoryview(lease)
            array = numpy.frombuffer(lease.data, numpy.uint8)
            assert array.tobytes() == b"some bytes"
            assert lease.release()
            for use in (bytes, lambda one: one[0]):
                with pytest.raises(ValueError, match="released"):
                    use(lease)
