"""``mooncake.store``: how it is set up, and servers that are gone."""

from __future__ import annotations

import logging
import secrets
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.block_server import Served
from harness.mooncake import BAD, MISSING, NO_SERVER, REFUSED, Room, Store, opened
from moewire.store import Namespace

pytestmark = pytest.mark.usefixtures("mooncake_namespace")


def test_set_up(block_server: Served) -> None:
    one = Store()
    assert one.health_check() == 1
    assert (one.put("a", b"b"), one.get("a"), one.is_exist("a")) == (BAD, b"", -1)
    room = Room(4)
    assert one.batch_put_from(["a", "b"], [room.ptr] * 2, [4, 4]) == [BAD, BAD]
    assert one.register_buffer(room.ptr, 4) == one.get_size("a") == one.remove_all() == BAD
    assert (one.get_batch(["a"]), one.get_buffer("a"), one.moewire_stats()) == ([b""], None, {})
    segment = 1 << 45
    assert (
        one.setup("host", "meta", segment, segment, "rdma", "mlx5", block_server.address, None) == 0
    )
    assert one.health_check() == 0
    name, _, port = one.get_hostname().partition(":")
    assert name == "host"
    assert 12300 <= int(port) <= 14300
    assert one.put("a", b"b") == 0
    assert (
        one.setup("host:77", "", 0, 16, "tcp", "", block_server.address, tenant_id="another") == 0
    )
    assert one.get_hostname() == "host:77"
    assert (one.is_exist("a"), one.close(), one.close(), one.health_check()) == (0, 0, 0, 1)
    assert one.setup_dummy(segment, segment, block_server.address) == 0
    assert (one.get("a"), one.close()) == (b"b", 0)


def test_the_namespace(block_server: Served) -> None:
    """As others reach it."""
    one = opened(block_server.address, tenant_id="t")
    assert one.put("a", b"b") == 0
    model = "test_the_namespace"
    with block_server.client(Namespace(model=model, layout="mooncake.store", salt="t")) as client:
        assert client.get("a") == b"b"
    assert one.close() == 0


def test_no_local_buffer(block_server: Served) -> None:
    """With Mooncake calls that copy fail then."""
    one, room = opened(block_server.address, local_buffer_size=0), Room(b"data")
    assert one.put("a", b"data") == one.put_batch(["a"], [b"data"]) == BAD
    assert one.put_tensor("a", torch.zeros(3)) == BAD
    assert one.is_exist("a") == 0
    assert one.put_from("a", room.ptr, 4) == 0
    assert (one.get("a"), one.get_into("a", room.ptr, 4)) == (b"", 4)
    assert one.close() == 0


SETUPS: list[tuple[dict[str, Any], dict[str, str], int, str]] = [
    ({"local_hostname": ""}, {}, BAD, "local_hostname: nothing given"),
    ({"metadata_server": ""}, {}, BAD, "metadata_server: nothing given"),
    ({"global_segment_size": "50%"}, {}, BAD, "global_segment_size: '50%' given"),
    ({"local_buffer_size": -1}, {}, BAD, "local_buffer_size: '-1' given"),
    ({"local_buffer_size": "16 XB"}, {}, BAD, "local_buffer_size: '16 XB' given"),
    ({"local_buffer_size": "B"}, {}, BAD, "local_buffer_size: 'B' given"),
    ({"master_server_addr": "etcd://a:1"}, {}, BAD, "master_server_addr: 'etcd://a:1' given"),
    ({"master_server_addr": "nowhere"}, {}, BAD, '"nowhere", allowed is host:port'),
    ({}, {"MOEWIRE_KEY_FILE": ""}, BAD, "MOEWIRE_KEY_FILE"),
    ({}, {"MOEWIRE_STORE_TIMEOUT_US": "soon"}, BAD, "MOEWIRE_STORE_TIMEOUT_US: 'soon' given"),
    ({}, {"MOEWIRE_STORE_TIMEOUT_US": "0"}, BAD, "timeout_us: 0 given"),
    ({}, {"MOEWIRE_STORE_PROTECTION": "none"}, BAD, "protection: 'none' given"),
    ({"global_segment_size": "3.5 GB", "local_buffer_size": "16mb"}, {}, 0, ""),
    ({"global_segment_size": "2G", "enable_ssd_offload": True}, {}, 0, "--storage file"),
]


@pytest.mark.parametrize(("given", "variables", "code", "text"), SETUPS, ids=range(len(SETUPS)))
def test_setups(
    block_server: Served,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    given: dict[str, Any],
    variables: dict[str, str],
    code: int,
    text: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    usual = {
        "local_hostname": "here",
        "metadata_server": "m",
        "master_server_addr": block_server.address,
    }
    one = Store()
    assert one.setup({**usual, **given}) == code
    assert text in caplog.text
    assert one.health_check() == (0 if code == 0 else 1)
    assert one.close() == 0


def test_variables_replace_the_address(
    block_server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOEWIRE_STORE_SERVERS", block_server.address)
    one = opened("etcd://somewhere")
    assert one.put("a", b"b") == 0
    assert one.close() == 0


def test_another_key(tmp_path: Path, block_server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text(f"1 {secrets.token_hex(32)}\n")
    wrong.chmod(0o600)
    monkeypatch.setenv("MOEWIRE_KEY_FILE", str(wrong))
    one = Store()
    assert one.setup("here", "m", master_server_addr=block_server.address) == REFUSED
    assert one.health_check() == 1


def test_a_server_that_is_gone(
    tmp_path: Path, block_server: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with Served(tmp_path, key=block_server.key) as server:
        one = opened(server.address)
        assert one.put("a", b"b") == 0
        server.kill()
        room = Room(1)
        assert one.put("c", b"d") == one.put_from("c", room.ptr, 1) == NO_SERVER
        assert (one.get("a"), one.is_exist("a"), one.get_into("a", room.ptr, 1)) == (
            b"",
            0,
            MISSING,
        )
        assert (one.get_size("a"), one.remove("a"), one.remove_all()) == (MISSING, MISSING, 0)
        assert one.batch_get_replica_desc(["a"]) == {}
        assert (one.health_check(), one.close()) == (2, 0)
        another = opened(server.address)  # only a warning
        assert "no server answers" in caplog.text
        assert (another.health_check(), another.close()) == (2, 0)
        server.start()


def test_closed_while_others_call(block_server: Served, caplog: pytest.LogCaptureFixture) -> None:
    one, ended = opened(block_server.address), threading.Event()
    seen: list[set[int]] = [set() for _ in range(4)]
    caplog.set_level(logging.CRITICAL, "moewire")

    def call(codes: set[int]) -> None:
        room = Room(b"data")
        while not ended.is_set():
            codes.add(one.put_from("a", room.ptr, 4))
            codes.add(one.get_into("a", room.ptr, 4))

    threads = [threading.Thread(target=call, args=(codes,)) for codes in seen]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            assert one.close() == 0
            assert one.setup("here", "m", master_server_addr=block_server.address) == 0
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert one.close() == 0
    # Closed under a call, which is a miss: no server has answered it.
    assert set.union(*seen) <= {0, 4, BAD, MISSING, NO_SERVER}
