"""When a server in files flushes: ``flush_every_us`` and ``flush_bytes``, ``--flush-*``."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import moewire.errors as errors
from harness.block_server import Served, run
from moewire.store import Client, Server

SELDOM_US = 10_000_000
BLOCK = bytes(100_000)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text(f"1 {secrets.token_hex(32)}\n")
    path.chmod(0o600)
    return path


def _flushes(said: dict[str, Any]) -> int:
    return int(said["store"]["flushes"])


def _served(tmp_path: Path, key: Path, **options: Any) -> Iterator[tuple[Server, Client]]:
    options = {
        "storage": "file",
        "path": tmp_path / "blocks",
        "capacity_bytes": 64 << 20,
        **options,
    }
    with (
        Server(key_file=key, **options) as server,
        Client(server.address, namespace="m", key_file=key) as client,
    ):
        yield server, client


def _until(server: Server, more_than: int) -> float:
    """How long it takes until there were more flushes."""
    begun = time.monotonic()
    while _flushes(server.stats()) <= more_than:
        assert time.monotonic() < begun + 20
        time.sleep(0.001)
    return time.monotonic() - begun


def test_flushed_after_so_many_bytes(tmp_path: Path, key: Path) -> None:
    """Time alone would take ten seconds."""
    options = {"flush_every_us": SELDOM_US, "flush_bytes": 500_000}
    for server, client in _served(tmp_path, key, **options):
        before = _flushes(server.stats())
        for at in range(4):
            assert client.put(f"key {at}", BLOCK)
        time.sleep(0.2)
        assert _flushes(server.stats()) == before, "fewer bytes than were said"
        assert client.put("key 4", BLOCK)
        assert client.put("key 5", BLOCK)
        assert _until(server, before) < SELDOM_US / 2e6


def test_flushed_after_so_long(tmp_path: Path, key: Path) -> None:
    for server, client in _served(tmp_path, key, flush_every_us=1_000_000):
        before = _flushes(server.stats())
        begun = time.monotonic()
        turns = 0
        while time.monotonic() < begun + 2.5:
            assert client.put(f"key {turns}", b"b")
            turns += 1
            time.sleep(0.02)
        assert turns > 20
        _until(server, before)
        flushes, seconds = _flushes(server.stats()) - before, time.monotonic() - begun
        assert flushes <= seconds + 1, "every 20 ms would be a hundred"


def test_the_command_takes_them(tmp_path: Path) -> None:
    options = ("--storage", "file", "--path", str(tmp_path / "blocks"), "--capacity", "64MiB")
    options += ("--flush-every", "10000", "--flush-bytes", "0.5MiB")
    with Served(tmp_path, *options) as server, server.client("m") as client:
        (said,) = client.stats()["servers"].values()
        assert client.put("a", BLOCK)
        time.sleep(0.2)
        (later,) = client.stats()["servers"].values()
        assert _flushes(later) == _flushes(said)
        assert all(client.batch_put([f"key {n}" for n in range(6)], [BLOCK] * 6))
        end = time.monotonic() + 8
        while _flushes(later) == _flushes(said):
            assert time.monotonic() < end
            (later,) = client.stats()["servers"].values()


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"flush_every_us": 999}, "flush_every_us: 999 given; allowed: 1000 to 10000000"),
    ({"flush_every_us": 10_000_001}, "flush_every_us: 10000001 given"),
    ({"flush_every_us": 2e4}, "flush_every_us: 20000.0 of type float given"),
    ({"flush_bytes": 0}, "flush_bytes: 0 given; allowed: 1 to"),
    ({"flush_bytes": 1, "durability": "each"}, "flush_bytes: 1 given; allowed: None, unless"),
    ({"flush_every_us": 5000, "storage": "memory", "path": None}, "flush_every_us: 5000 given"),
    ({"durability": "each", "storage": "memory", "path": None}, "durability: 'each' given"),
]


@pytest.mark.parametrize(("options", "text"), WRONG, ids=range(len(WRONG)))
def test_wrong_ones(tmp_path: Path, key: Path, options: dict[str, Any], text: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=text):
        next(_served(tmp_path, key, **options))
    assert not (tmp_path / "blocks").exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--flush-every", "0.5"), "--flush-every: 0.5 given; allowed: 1 to 10000 milliseconds"),
        (("--flush-every", "nan"), "--flush-every: nan given"),
        (("--flush-bytes", "much"), "--flush-bytes: 'much' given"),
        (("--flush-bytes", "1MiB"), 'allowed: None, unless storage is "file" and durability'),
    ],
)
def test_wrong_ones_of_the_command(tmp_path: Path, arguments: tuple[str, ...], text: str) -> None:
    key = tmp_path / "new"
    done = run("serve", "--listen", "127.0.0.1:0", "--new-key", str(key), *arguments)
    assert done.returncode != 0
    assert text in done.stderr
    assert not key.exists()
