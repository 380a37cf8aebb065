"""The entry of vLLM's tier in a configuration, and how it becomes a client. Without vLLM."""

from __future__ import annotations

from typing import Any

import pytest

from moewire.errors import InvalidArgument
from moewire.integrations.vllm.offload import _client, _options
from moewire.integrations.vllm.offload._counts import WORDS, Counts
from moewire.store import Namespace

NAMESPACE = Namespace("m", "w", "d", "l", "c", "p", "s")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"slat": "x"}, "slat: no option of the tier; allowed: servers, key_file"),
        ({"servers": "127.0.0.1:9900"}, "servers: '127.0.0.1:9900' given; allowed: a list"),
        ({"servers": []}, "servers: [] given"),
        ({"servers": [1]}, "servers: [1] given"),
        ({"transport": "udp"}, "transport: 'udp' given; allowed: 'auto', 'shm', 'tcp'"),
        ({"protection": "none"}, "protection: 'none' given; allowed: 'digest', 'encrypt'"),
        ({"timeout_us": 0}, "timeout_us: 0 given; allowed: an integer from 1000"),
        ({"timeout_us": True}, "timeout_us: True given"),
        ({"max_backlog_bytes": -1}, "max_backlog_bytes: -1 given"),
        ({"salt": None}, "salt: None given; allowed: a text"),
        ({"weights": ""}, "weights: '' given"),
        ({"enable_kv_events": 1}, "enable_kv_events: 1 given; allowed: true, false"),
        ({"locality": "HERE"}, "locality: 'HERE' given; allowed: None, 'LOCAL', 'REMOTE'"),
        ({"client": "module"}, "client: 'module' given"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        _options.parsed(given)
    assert text in str(raised.value)


def test_no_server_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(_client.STORE_SERVERS, raising=False)
    with pytest.raises(InvalidArgument, match=r"servers: none given.*MOEWIRE_STORE_SERVERS"):
        _client.connect(_options.parsed({}).settings, NAMESPACE)


@pytest.mark.parametrize("client", ["no.such.module:Client", "json:Client", ":x"])
def test_a_client_that_is_not_there_is_refused(client: str) -> None:
    options = _options.parsed({"servers": ["a"], "client": client})
    with pytest.raises(InvalidArgument, match="which is not there"):
        _client.connect(options.settings, NAMESPACE)


def test_the_client_gets_all_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    from harness import fake_store

    seen: dict[str, Any] = {}
    monkeypatch.setattr(fake_store, "Client", lambda servers, **rest: seen.update(rest, at=servers))
    given: dict[str, Any] = {"servers": ["a:1", "b:2"], "key_file": "k", "transport": "tcp"}
    given |= {"timeout_us": 5000, "protection": "encrypt"}
    options = _options.parsed({**given, "client": "harness.fake_store:Client"})
    _client.connect(options.settings, NAMESPACE)
    assert seen.pop("at") == given.pop("servers") and seen.pop("namespace") == NAMESPACE
    assert seen == given


def test_every_count_has_words() -> None:
    assert set(WORDS) == set(vars(Counts()))
    counts = Counts()
    counts.load_blocks = 5
    assert counts.since({"load_blocks": 3}) == {"load_blocks": 2}
