"""``moewire.store`` and ``moewire store``: a server in a process of its own, and a client here."""

from __future__ import annotations

import multiprocessing
import os
import secrets
import select
import socket
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
import torch

import moewire.errors as errors
from harness.block_server import Served
from moewire.store import Client, Completion, Namespace

LONG_US = 20_000_000
SHORT_US = 150_000
Blocks = Callable[..., Client]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("memory"), "--capacity", "64MiB") as server:
        yield server


@pytest.fixture
def blocks(served: Served, request: pytest.FixtureRequest) -> Iterator[Client]:
    """A client with a namespace of the test's own."""
    with served.client(request.node.name) as client:
        yield client


def wait_for(client: Client, *wanted: int) -> dict[int, Completion]:
    found: dict[int, Completion] = {}
    end = time.monotonic() + 20
    while not {*wanted} <= found.keys():
        assert time.monotonic() < end, f"{wanted} of {found}"
        assert select.select([client.event_fd()], [], [], 20)[0]
        found |= {done.id: done for done in client.drain()}
    return found


def test_put_and_get(blocks: Client, seed: int) -> None:
    data = [Random(seed).randbytes(n) for n in (0, 1, 5000, 70_000, 900_000, 1 << 16, 1 << 16)]
    for at, block in enumerate(data):
        assert blocks.put(f"key {at}", block)
    turns = (4, 4, 0, 5, 6, 3, 1, 2)  # longer and shorter than the last one, and as long
    got = [blocks.get(f"key {at}".encode()) for at in turns]
    assert got == [data[at] for at in turns], "each stays what it was"
    assert {type(block) for block in got} == {bytes}
    assert blocks.get("key 7") is None
    assert blocks.put("key 2", data[2])
    assert not blocks.put("key 2", data[3]), "another block under the same key"
    assert blocks.get("key 2") == data[2]
    assert blocks.stats()["replies"]["conflict"] == 1


def test_chains(blocks: Client) -> None:
    keys = [f"block {n}" for n in range(10)]
    assert blocks.batch_put(keys[:4], [key.encode() for key in keys[:4]]) == [True] * 4
    assert blocks.batch_put(keys[4:6], [b"four", b"five"], parent=keys[3]) == [True] * 2
    assert blocks.put(keys[8], b"eight")
    assert blocks.exists(keys) == [True] * 6 + [False, False, True, False]
    assert blocks.prefix(keys) == 6
    assert blocks.prefix(keys[6:]) == 0
    assert blocks.prefix(keys[:6]) == 6
    blocks.touch(keys)
    assert blocks.pin(keys[5:7], 0.5) == [True, False]
    assert blocks.delete(keys[4:7]) == 2
    assert blocks.prefix(keys) == 4
    assert blocks.flush()
    assert blocks.exists([]) == blocks.batch_put([], []) == blocks.lookup([]) == []


def test_into_memory_of_the_caller(blocks: Client, seed: int) -> None:
    data = Random(seed).randbytes(10_000)
    tensor = torch.frombuffer(bytearray(data), dtype=torch.int16)
    assert blocks.put("pieces", [data[:3], memoryview(data)[3:7000], tensor[3500:]])
    assert blocks.put("tensor", tensor)
    into = torch.zeros(5000, dtype=torch.int16)
    parts = [bytearray(4000), bytearray(9000)]
    small = bytearray(9999)
    keys = ["pieces", "none", "tensor", "pieces"]
    assert blocks.batch_get_into(keys, [parts, bytearray(5), into, small]) == [
        10_000,
        -1,
        10_000,
        -1,
    ]
    assert bytes(parts[0] + parts[1])[:10_000] == data
    assert not any(parts[1][6000:])
    assert torch.equal(into, tensor)
    blocks.register(into)


def test_buffers_are_let_go(blocks: Client) -> None:
    """After a call, and after one that refuses the last of them."""
    keys = ["a", "b", "c"]
    assert all(blocks.batch_put(keys, [b"one", b"2", b"three"]))
    into = [bytearray(3), memoryview(bytearray(b"1234"))[1:2], array("B", bytes(9))]
    assert blocks.batch_get_into(keys, into) == [3, 1, 5]
    assert [bytes(part) for part in into] == [b"one", b"2", b"three" + bytes(4)]
    into[0].append(1)
    into[2].append(1)
    with pytest.raises(errors.InvalidArgument, match=r"buffers\[2\]"):
        blocks.batch_get_into(keys, [into[0], into[1], b"read-only"])
    into[0].append(1)


def test_lookup(blocks: Client) -> None:
    assert blocks.put("a", b"some bytes")
    assert blocks.put("empty", b"")
    assert blocks.lengths(["a", "b", "empty"]) == [10, -1, 0]
    assert blocks.lengths([]) == []
    found, missing = blocks.lookup(["a", "b"])
    assert missing is None
    assert found is not None
    assert blocks.delete(["a"]) == 1
    with found as view:
        assert len(found) == 10
        assert bytes(view) == b"some bytes"
    with pytest.raises(ValueError, match="released"):
        bytes(found.data)


def test_list(blocks: Client) -> None:
    wanted = {b"%s/%d/%s" % (name, n, b"x" * 400) for name in (b"a", b"b") for n in range(400)}
    for begin in (b"a", b"b"):
        some = [key for key in wanted if key.startswith(begin)]
        assert all(blocks.batch_put(some, [b""] * len(some)))
    assert sorted(blocks.list()) == sorted(wanted)
    assert sorted(blocks.list("a/1")) == sorted(key for key in wanted if key.startswith(b"a/1"))
    assert list(blocks.list("c")) == []


def test_namespaces_share_nothing(served: Served) -> None:
    names = [Namespace(model="m")] + [
        Namespace(**{"model": "m", field: "other"}) for field in Namespace._fields
    ]
    clients = [served.client(name) for name in names]
    assert clients[0].put("key", b"value")
    assert [client.get("key") for client in clients] == [b"value"] + [None] * len(clients[1:])
    for client in clients:
        client.close()


def test_submit(blocks: Client) -> None:
    keys = ["a", "b", "c"]
    put = blocks.submit_put(keys[:2], [b"first", [b"sec", b"ond"]])
    assert wait_for(blocks, put)[put] == Completion(put, [True, True], [5, 6], None)
    into = [bytearray(5), [bytearray(2), bytearray(4)], bytearray(3)]
    get, exists = blocks.submit_get(keys, into), blocks.submit_exists(keys)
    found = wait_for(blocks, get, exists)
    assert found[get] == Completion(get, [True, True, False], [5, 6, -1], None)
    assert found[exists].ok == [True, True, False]
    assert into == [b"first", [b"se", b"cond"], bytes(3)]
    into[0].append(1)  # the library has let go of it
    gone = blocks.submit_delete(["b"])
    assert wait_for(blocks, gone)[gone].ok == [True]
    assert blocks.drain() == []
    assert select.select([blocks.event_fd()], [], [], 0)[0] == []


def test_submitted_memory_is_held(served: Served) -> None:
    """A buffer of a request that runs cannot be resized; at the cap nothing is begun."""
    with Served(served.folder, key=served.key) as other:
        client = other.client("held", timeout_us=LONG_US)
        other.stop()
        into = bytearray(100)
        client.submit_get(["a"], [into])
        with pytest.raises(BufferError):
            into.append(1)
        for _ in range(1023):
            client.submit_exists(["a"])
        with pytest.raises(errors.WouldBlockError):
            client.submit_exists(["a"])
        client.close()
        into.append(1)
        assert client.closed
        other.go_on()


def test_a_wrong_key_is_refused(served: Served, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text(f"1 {secrets.token_hex(32)}\n")
    wrong.chmod(0o600)
    with pytest.raises(errors.RefusedError):
        Client(served.address, namespace="m", key_file=wrong)


@pytest.mark.parametrize("fault", ["kill", "stop"])
def test_a_server_that_is_gone_is_a_miss(served: Served, fault: str) -> None:
    """It costs a deadline at most, once; then misses are quick until it is back."""
    with Served(served.folder, key=served.key) as server:
        client = server.client("m", timeout_us=SHORT_US)
        assert client.put("a", b"b")
        getattr(server, fault)()
        begun = time.monotonic()
        for _ in range(100):
            assert client.get("a") is None
            assert client.exists(["a", "b"]) == [False, False]
            assert not client.put("c", b"d")
            assert client.lookup(["a"]) == [None]
            assert client.lengths(["a"]) == [-1]
        assert time.monotonic() - begun < 20 * SHORT_US / 1e6, "each call waited"
        assert not client.flush(timeout_us=SHORT_US)
        assert client.stats()["servers"] == {server.address: None}
        if fault == "stop":
            server.go_on()
            end = time.monotonic() + 20
            while client.get("a") != b"b":
                assert time.monotonic() < end, "it did not come back"
                time.sleep(0.05)
        client.close()


def test_several_servers(served: Served) -> None:
    with Served(served.folder, key=served.key) as other:
        keys = [f"key {n}" for n in range(64)]
        both = Client([served.address, other.address], namespace="both", key_file=served.key)
        assert all(both.batch_put(keys, [key.encode() for key in keys]))
        with served.client("both") as one, other.client("both") as two:
            a, b = one.exists(keys), two.exists(keys)
        assert all(x != y for x, y in zip(a, b, strict=True))
        assert any(a)
        assert any(b)
        assert sorted(both.list()) == sorted(key.encode() for key in keys)
        other.kill()
        assert both.exists(keys) == a
        both.close()


BAD = [
    (lambda c: c.put("", b""), "key: 0 bytes given; allowed: 1 to 512"),
    (lambda c: c.put("k" * 513, b""), "key: 513 bytes given"),
    (lambda c: c.put(7, b""), "key: a int given; allowed: bytes or str"),
    (lambda c: c.get(None), "key: a NoneType given"),
    (lambda c: c.put("k", "text"), "data: a str given; allowed: a contiguous buffer"),
    (lambda c: c.put("k", b"", parent=""), "parent: 0 bytes given"),
    (lambda c: c.put("k", b"", timeout_us=0), "timeout_us: 0 given"),
    (lambda c: c.put("k", memoryview(b"1234")[::2]), "a memoryview given; allowed: a contiguous"),
    (lambda c: c.batch_put(["a", "b"], [b""]), "buffers: 1 buffers given; allowed: 2"),
    (lambda c: c.batch_get_into(["a"], [b"read-only"]), r"buffers\[0\]: a bytes given"),
    (lambda c: c.batch_get_into(["a"], [torch.zeros(4, 4).T]), "with strides"),
    (lambda c: c.exists("abc"), "keys: a str given; allowed: a sequence of keys"),
    (lambda c: c.exists([b"k"] * 513), "keys: 513 keys given; allowed: 0 to 512"),
    (lambda c: c.exists(["a", 1.5]), r"keys\[1\]: a float given"),
    (lambda c: c.submit_exists([]), "keys: 0 keys given"),
    (lambda c: c.pin(["a"], -1), "ttl_s: -1 given"),
    (lambda c: c.pin(["a"], float("nan")), "ttl_s: nan given"),
    (lambda c: c.list(3.5), "prefix: a float given"),
    (lambda c: c.register(b"read-only"), "buffer: a bytes given"),
    (lambda c: c.flush(-1), "timeout_us: -1 given"),
]


@pytest.mark.parametrize(("call", "text"), BAD, ids=range(len(BAD)))
def test_bad_arguments(blocks: Client, call: Callable[[Client], object], text: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=text):
        call(blocks)
    assert list(blocks.list()) == []


def test_a_server_that_takes_no_connection(served: Served) -> None:
    """A client waits for it as long as it was told, not 2 s."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        begun = time.monotonic()
        name = f"127.0.0.1:{silent.getsockname()[1]}"
        with Client(name, namespace="m", key_file=served.key, connect_timeout_us=50_000) as client:
            assert time.monotonic() - begun < 1.5
            assert client.get("a") is None


def test_a_client_that_cannot_be_opened(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MOEWIRE_STORE_SERVERS", "MOEWIRE_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    good = {"servers": served.address, "namespace": "m", "key_file": served.key}
    for change, text in (
        ({"servers": None}, "servers: nothing given; allowed: host:port, or MOEWIRE_STORE_SERVERS"),
        ({"servers": "nowhere"}, '"nowhere", allowed is host:port'),
        ({"servers": "127.0.0.1:65536"}, '"127.0.0.1:65536", allowed is host:port'),
        ({"servers": [served.address] * 2}, "given twice"),
        ({"key_file": None}, "MOEWIRE_KEY_FILE; there is no mode without"),
        ({"key_file": "/nonexistent"}, "key_file: "),
        ({"namespace": ""}, "namespace: an empty one given"),
        ({"namespace": 7}, "namespace: a int given"),
        ({"namespace": Namespace("m" * 5000)}, "5[0-9]* bytes; allowed: 4096"),
        ({"transport": "rdma"}, "transport: 'rdma' given; allowed: auto, shm, tcp"),
        ({"timeout_us": 0}, "timeout_us: 0 given"),
        ({"connect_timeout_us": 0}, "connect_timeout_us: 0 given"),
        ({"protection": "none"}, "protection: 'none' given"),
    ):
        with pytest.raises(errors.InvalidArgument, match=text):
            Client(**{**good, **change})
    monkeypatch.setenv("MOEWIRE_STORE_SERVERS", served.address)
    monkeypatch.setenv("MOEWIRE_KEY_FILE", str(served.key))
    with Client(namespace="from variables") as client:
        assert client.put("a", b"b")


def _in_child(client: Client, to: object) -> None:
    said = []
    for call in (lambda: client.get("a"), lambda: client.submit_exists(["a"]), client.drain):
        try:
            call()
        except errors.ForkedError:
            said.append(True)
    client.close()
    to.send(said)  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_close_and_fork(served: Served) -> None:
    client = served.client("forks")
    assert client.put("a", b"b")
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_in_child, args=(client, there))
    child.start()
    assert here.poll(20)
    assert here.recv() == [True] * 3
    child.join(20)
    assert child.exitcode == 0
    assert client.get("a") == b"b", "the child has ended the parent's connection"
    pages = client.list()
    client.close()
    client.close()
    for call in (
        lambda: client.get("a"),
        lambda: client.exists([]),
        lambda: client.submit_exists(["a"]),
        client.drain,
        client.stats,
        client.event_fd,
        client.flush,
        lambda: client.lookup(["a"]),
        lambda: client.lengths(["a"]),
        lambda: next(pages),
    ):
        with pytest.raises(errors.ClosedError):
            call()


def test_the_interpreter_ends_while_requests_run(served: Served) -> None:
    program = (
        "from moewire.store import Client\n"
        "client = Client(namespace='m')\n"
        "for n in range(100):\n"
        "    client.submit_put([str(n)], [bytes(100_000)])\n"
        "print('ended')\n"
    )
    variables = {"MOEWIRE_STORE_SERVERS": served.address, "MOEWIRE_KEY_FILE": str(served.key)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")
