"""``/metrics`` of a server of blocks, as Prometheus' own parser reads it."""

from __future__ import annotations

import secrets
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import moewire.errors as errors
from harness.block_server import Served
from moewire.store import Client, Namespace, Server

_MODEL = 'a "model"\\of\nlines é'


@pytest.fixture
def server(served_keys: str) -> Iterator[Server]:
    with Server(capacity_bytes=64 << 20, key_file=served_keys, metrics="127.0.0.1:0") as running:
        yield running


@pytest.fixture
def served_keys(tmp_path: Any) -> str:
    key = tmp_path / "keys"
    key.write_text(f"1 {secrets.token_hex(32)}\n")
    key.chmod(0o600)
    return str(key)


def scrape(address: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as reply:
        assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = reply.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.name.startswith("moewire_store_")
        assert family.documentation
        assert family.type in ("counter", "gauge", "histogram")
        for sample in family.samples:
            key = (sample.name.removeprefix("moewire_store_"), frozenset(sample.labels.items()))
            assert key not in found
            found[key] = sample.value
    return found


def test_metrics_are_a_plain_count(server: Server, served_keys: str, seed: int) -> None:
    rng, want, blocks = Random(seed), Counter[str](), dict[str, bytes]()
    with Client(server.address, namespace=Namespace(_MODEL), key_file=served_keys) as client:
        for _ in range(150):
            key = f"key{rng.randrange(30)}"
            if rng.random() < 0.5:
                want["hits_total" if key in blocks else "misses_total"] += 1
                want["sent_bytes_total"] += len(blocks.get(key, b""))
                assert client.get(key) == blocks.get(key)
                continue
            data = rng.randbytes(rng.randrange(1, 9000))
            assert client.put(key, data) == (key not in blocks)
            name = "conflicts_total" if key in blocks else "stored_blocks_total"
            want[name] += 1
            blocks.setdefault(key, data)
        found = scrape(server.metrics_address)
        none = frozenset[tuple[str, str]]()
        assert {name: found[name, none] for name in want} == want
        assert found["received_bytes_total", none] == sum(map(len, blocks.values()))
        assert found["clients", none] == 1
        conflicts = found["refused_puts_total", frozenset({("cause", "conflict")})]
        assert conflicts == want["conflicts_total"]
        spaces = {
            dict(labels)["namespace"]: n
            for (name, labels), n in found.items()
            if name == "namespace_blocks"
        }
        assert spaces == {_MODEL: len(blocks)}
        buckets = [
            n
            for (name, labels), n in found.items()
            if name == "request_duration_seconds_bucket" and ("code", "get") in labels
        ]
        assert buckets == sorted(buckets)
        assert buckets[-1] == want["hits_total"] + want["misses_total"]
        said = client.stats()["servers"][server.address]
        assert said["counts"]["hits"] == want["hits_total"]
        assert said["store"]["namespaces"][0]["hits"] == want["hits_total"]
        assert said["latency"]["get"]["count"] == buckets[-1]


def test_only_get_is_served(server: Server) -> None:
    for method, path, status in (("POST", "/metrics", 405), ("GET", "/", 404)):
        request = urllib.request.Request(f"http://{server.metrics_address}{path}", method=method)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=20)
        assert refused.value.code == status
        refused.value.close()


def test_without_and_with_a_wrong_address(served_keys: str) -> None:
    with Server(capacity_bytes=64 << 20, key_file=served_keys) as running:
        assert running.metrics_address == ""
        with pytest.raises(errors.SystemCallError):
            Server(key_file=served_keys, metrics=running.address)
    for wrong in ("", "9900", 9900, "a,b:1"):
        with pytest.raises(errors.InvalidArgument, match="metrics"):
            Server(key_file=served_keys, metrics=wrong)  # type: ignore[arg-type]


def test_the_command(tmp_path: Any) -> None:
    with Served(tmp_path, "--metrics", "127.0.0.1:0") as server:
        address = server.says("metrics at ").rpartition(" ")[2]
        assert scrape(address.removeprefix("http://").removesuffix("/metrics"))


def test_a_server_that_is_drained_is_seen(served_keys: str) -> None:
    """Counts, log and /metrics are there until the server is closed, not until it is drained."""
    with Server(capacity_bytes=64 << 20, key_file=served_keys, metrics="127.0.0.1:0") as running:
        with Client(running.address, namespace="m", key_file=served_keys) as client:
            assert client.put("key", b"data")
            running.drain(1_000_000)
            running.drain(0)
            assert not client.put("other", b"data")
        assert scrape(running.metrics_address)["draining", frozenset()] == 1
        assert running.stats()["store"]["puts"] == 1
        assert running.log() == []
    running.drain()  # of a server that is closed: nothing
