"""Blocks that a client reads where they lie, at servers of this host in processes of their own."""

from __future__ import annotations

import mmap
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

import moewire.errors as errors
from harness.block_server import SOON_S, Served
from moewire.store import Client

NUM_BYTES = 300_000


@pytest.fixture(params=["memory", "file"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    path = () if request.param == "memory" else ("--path", str(tmp_path / "blocks"))
    with Served(tmp_path, "--storage", request.param, "--capacity", "64MiB", *path) as server:
        yield server


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path, "--capacity", "8MiB") as server:
        yield server


def carrier(client: Client) -> str:
    (found,) = client.stats()["carriers"].values()
    return str(found)


def until_it_is_back(client: Client, servers: int = 1) -> None:
    end = time.monotonic() + SOON_S
    while client.stats()["servers_up"] < servers:
        assert time.monotonic() < end, client.stats()
        time.sleep(0.01)


def test_both_carriers_give_the_same(served: Served, seed: int) -> None:
    """Puts, gets and deletes over both, against a plain dict."""
    src, want = Random(seed), dict[str, bytes]()
    with (
        served.client("m") as auto,
        served.client("m", transport="shm") as shm,
        served.client("m", transport="tcp") as tcp,
    ):
        clients = (auto, shm, tcp)
        assert [carrier(client) for client in clients] == ["shm", "shm", "tcp"]
        for _ in range(300):
            client, key = src.choice(clients), f"key {src.randrange(20)}"
            match src.randrange(4):
                case 0:
                    data = src.randbytes(src.choice((0, 1, 5000, 65_536, 400_001)))
                    assert client.put(key, data) == (want.setdefault(key, data) == data)
                case 1:
                    assert client.delete([key]) == (want.pop(key, None) is not None)
                case 2:
                    assert client.get(key) == want.get(key)
                case _:
                    (lease,) = client.lookup([key])
                    assert (lease is None) == (key not in want)
                    if lease is not None:
                        with lease as view:
                            assert bytes(view) == want[key]
        assert all(client.stats()["moved"] == 0 for client in clients)


def test_a_lease_is_not_a_copy(memory: Served, seed: int) -> None:
    data = Random(seed).randbytes(NUM_BYTES)
    with memory.client("m") as client, memory.client("m", transport="tcp") as other:
        assert client.put("key", data)
        (lease,) = client.lookup(["key"])
        (copy,) = other.lookup(["key"])
        assert lease is not None
        assert copy is not None
        assert isinstance(lease.data.obj, mmap.mmap)
        assert not isinstance(copy.data.obj, mmap.mmap)
        assert lease.data.readonly
        assert lease.data.format == "B"
        assert client.delete(["key"]) == 1
        for n in range(80):  # three times what there is room for
            assert client.put(f"{n}", Random(n).randbytes(NUM_BYTES))
        assert lease.data == copy.data == data
        assert lease.release()
        assert lease.release()
        assert copy.release()
        with pytest.raises(ValueError, match="released"):
            bytes(lease.data)


def test_a_lease_outlives_its_client(memory: Served) -> None:
    data = bytes(range(256)) * 100
    client = memory.client("m")
    assert client.put("key", data)
    first, second, kept = client.lookup(["key", "key", "key"])
    assert first is not None
    assert second is not None
    assert kept is not None
    view = memoryview(kept.data)  # another one of the same memory
    client.close()
    assert first.data == view == data
    assert not first.release(), "the server may have given the block up"
    with pytest.raises(errors.StaleHandleError, match="not kept"):  # noqa: SIM117
        with second as found:
            assert found == data
    memory.kill()
    assert view == data
    del view
    memory.start()


def fill(client: Client) -> None:
    """Puts three times what there is room for."""
    for n in range(80):
        assert client.put(f"{n}", Random(n).randbytes(NUM_BYTES))


def test_a_view_keeps_the_lease(memory: Served, seed: int) -> None:
    """A view whose Lease is garbage shows its block for as long as the view is there."""
    data = Random(seed).randbytes(NUM_BYTES)
    with memory.client("m") as client:
        assert client.put("key", data)
        (lease,) = client.lookup(["key"])
        assert lease is not None
        view = memoryview(lease.data)
        del lease
        assert client.delete(["key"]) == 1
        fill(client)
        assert view == data
        del view
        fill(client)


@pytest.mark.parametrize("room", [30, None])
def test_no_descriptor_is_kept(memory: Served, seed: int, room: int | None) -> None:
    """Leased blocks are mapped and keep none; with none left they are copied. All leases end."""
    blocks = [Random(seed + n).randbytes(5000) for n in range(200)]
    keys = [f"block {n}" for n in range(200)]
    with memory.client("m") as client:
        assert all(client.batch_put(keys, blocks))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        begun = os.listdir("/proc/self/fd")
        most = 3 if room is None else len(begun) + room  # none: all those below are there
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        try:
            leases = client.lookup(keys)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert len(os.listdir("/proc/self/fd")) == len(begun)
        for lease in leases:
            assert lease is not None
            assert isinstance(lease.data.obj, mmap.mmap) == (room is not None)
        for lease, data in zip(leases, blocks, strict=True):
            assert lease is not None
            with lease as view:
                assert view == data
        del view, lease, leases
        assert len(os.listdir("/proc/self/fd")) == len(begun)
        fill(client)


def test_closed_between_place_and_map(
    memory: Served, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread closes the client, and other files take the numbers of its descriptors."""
    data, others = Random(seed).randbytes(NUM_BYTES), list[int]()
    with memory.client("m") as client:
        assert client.put("key", data)
        place_of = client._lib.store_lease_place

        def place_then_close(*args: Any) -> int:
            status = place_of(*args)
            client.close()
            for _ in range(50):
                others.append(os.memfd_create("other"))
                os.ftruncate(others[-1], 8 << 20)
            return status

        monkeypatch.setattr(client._lib, "store_lease_place", place_then_close)
        (lease,) = client.lookup(["key"])
        for other in others:
            os.close(other)
        assert lease is not None
        assert isinstance(lease.data.obj, mmap.mmap)
        assert lease.data == data
        assert not lease.release()


def test_killed_and_started_again(memory: Served, caplog: pytest.LogCaptureFixture) -> None:
    """The server is killed while blocks are read: misses, no other bytes or carrier."""
    blocks = {f"{n}": Random(n).randbytes(100_000) for n in range(30)}
    memory.options += ("--listen", memory.address)
    with memory.client("m", timeout_us=2_000_000) as client:
        for _ in range(3):
            assert client.batch_put(list(blocks), list(blocks.values())) == [True] * len(blocks)
            (lease,) = client.lookup(["7"])
            assert lease is not None
            killed = False
            for at in range(60):
                got = client.get(f"{at % 30}")
                assert got == blocks[f"{at % 30}"] or (killed and got is None)
                if at == 20:
                    memory.kill()
                    killed = True
            assert lease.data == blocks["7"]
            assert not lease.release()
            memory.start()
            until_it_is_back(client)
            assert carrier(client) == "shm"
            assert client.get("7") is None
        assert client.stats()["latched_to_tcp"] == 0
    assert not [record for record in caplog.records if "TCP" in record.message]


KILLED = """
import os, sys
from moewire.store import Client
client = Client(sys.argv[1], namespace="m", key_file=sys.argv[2], transport="shm")
leases = client.lookup([str(n) for n in range(20)])
assert all(len(lease.data) for lease in leases)
print("leased", flush=True)
sys.stdin.read()
"""


def test_leases_of_a_killed_client_end(memory: Served) -> None:
    """A server that a client's leases fill has room again once that client is dead."""
    with memory.client("m") as client:
        for n in range(20):
            assert client.put(f"{n}", Random(n).randbytes(NUM_BYTES))
        program = subprocess.Popen(
            [sys.executable, "-c", KILLED, memory.address, str(memory.key)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        with program:
            assert program.stdout is not None
            assert program.stdout.readline() == b"leased\n"
            full = [client.put(f"more {n}", Random(n).randbytes(NUM_BYTES)) for n in range(20)]
            assert False in full, "the leases keep what there is"
            program.send_signal(signal.SIGKILL)
            program.wait(SOON_S)
        end = time.monotonic() + SOON_S
        while not all(client.put(f"then {n}", b"x" * NUM_BYTES) for n in range(40)):
            assert time.monotonic() < end
        assert all(client.get(f"then {n}") == b"x" * NUM_BYTES for n in range(30, 40))


def test_a_forked_child(memory: Served) -> None:
    """What was leased can be read in a child; the parent's client is none there, and stays well."""
    with memory.client("m") as client:
        assert client.put("key", b"bytes" * 1000)
        (lease,) = client.lookup(["key"])
        assert lease is not None
        child = os.fork()
        if child == 0:
            status = 1
            try:
                assert lease.data == b"bytes" * 1000
                with pytest.raises(errors.ForkedError):
                    client.get("key")
                lease.release()
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert client.get("key") == b"bytes" * 1000
        assert lease.release()


def test_a_failure_is_said_once(tmp_path: Path) -> None:
    """Without room to map the memory there is TCP, which is said; an explicit choice is refused.

    There is room for all else: stacks of threads, arenas of the C library and Go's heap.
    """
    program = """
import logging, resource, sys
from moewire.store import Client
import moewire.errors as errors
logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stdout)
options = dict(namespace="m", key_file=sys.argv[2], timeout_us=5_000_000)
with Client(sys.argv[1], **options) as first:
    assert first.put("key", b"bytes"), first.stats()
    assert list(first.stats()["carriers"].values()) == ["shm"]
    used = int(open("/proc/self/statm").read().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 30), resource.RLIM_INFINITY))
    with Client(sys.argv[1], **options) as client:
        for _ in range(3):
            assert client.get("key") == b"bytes"
        assert list(client.stats()["carriers"].values()) == ["tcp"]
    try:
        Client(sys.argv[1], transport="shm", **options)
    except errors.RefusedError as error:
        print("refused:", error)
"""
    with Served(tmp_path, "--capacity", "8GiB") as memory:
        ran = subprocess.run(
            [sys.executable, "-c", program, memory.address, str(memory.key)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                "MALLOC_ARENA_MAX": "2",
            },
        )
    assert ran.returncode == 0, ran.stderr
    warning, refused = ran.stdout.splitlines()
    assert warning.startswith(f"WARNING {memory.address}: blocks come by TCP for now")
    assert "refused: " in refused
    assert "shared memory" in refused
