"""Get sessions of ``mooncake.store``: blocks that are read layer by layer."""

from __future__ import annotations

import inspect
from random import Random

import pytest

from harness.block_server import Served
from harness.mooncake import BAD, BAD_KEY, FULL, MISSING, Room, Store, opened
from moewire.compat._mooncake_store._blocks import Blocks
from moewire.compat._mooncake_store._memory import BufferHandle

LAYERS = 6


def _ranges(store: Store, keys: list[str], rooms: list[Room], layer: int) -> list[int]:
    """A layer of each block: two parts of it, one behind the other in the room."""
    ptrs, sizes, since = [], [], []
    for room in rooms:
        half = room.size // LAYERS // 2
        at = layer * 2 * half
        ptrs.append([room.ptr + at, room.ptr + at + half])
        sizes.append([half, half])
        since.append([at, at + half])
    return store.batch_get_into_multi_buffer_ranges(keys, ptrs, sizes, since)


def test_layer_by_layer(mooncake: Store, seed: int) -> None:
    """As SGLang reads: each layer of all blocks; the blocks may be removed meanwhile."""
    source = Random(seed)
    data = {f"page {n}": source.randbytes(2 * LAYERS * (n * 50 + 1)) for n in range(20)}
    assert all(mooncake.put(key, block) == 0 for key, block in data.items())
    keys, rooms = [*data], [Room(len(block)) for block in data.values()]
    assert mooncake.batch_get_session_start(keys) == [0] * len(keys)
    for layer in range(LAYERS):
        if layer == 2:
            assert mooncake.remove_all() == len(keys)
            assert mooncake.put(keys[0], b"another block") == 0
        assert _ranges(mooncake, keys, rooms, layer) == [room.size // LAYERS for room in rooms]
    assert [room.bytes() for room in rooms] == list(data.values())
    assert mooncake.batch_get_session_end(keys) == 0
    assert _ranges(mooncake, keys, rooms, 0) == [MISSING] * len(keys)


def test_misses_and_wrong_parts(mooncake: Store) -> None:
    assert mooncake.put("key", b"0123456789") == 0
    assert mooncake.batch_get_session_start(["key", "none", "", "key"]) == [0, MISSING, BAD_KEY, 0]
    room = Room(10)
    parts = [
        ([room.ptr], [4], [6], 4),
        ([room.ptr], [4], [7], BAD),  # over the end
        ([room.ptr], [4], [-1], BAD),
        ([room.ptr], [11], [0], BAD),
        ([0], [4], [0], BAD),
        ([room.ptr], [4, 4], [0], BAD),
        ([room.ptr], [4], [0, 4], BAD),
        ([room.ptr, room.ptr + 4], [4, 4], [0, 7], BAD),
    ]
    for ptrs, sizes, since, code in parts:
        room.buffer.raw = bytes(10)
        wanted = [["key"], [ptrs], [sizes], [since]]
        assert mooncake.batch_get_into_multi_buffer_ranges(*wanted) == [code]
        assert room.bytes() == (b"6789" if code > 0 else b"").ljust(10, b"\0")
    twice = [["key", "key"], [[room.ptr], [room.ptr + 3]], [[3], [2]], [[1], [8]]]
    assert mooncake.batch_get_into_multi_buffer_ranges(*twice) == [3, 2]
    assert room.bytes() == b"12389".ljust(10, b"\0")
    assert mooncake.batch_get_into_multi_buffer_ranges(["key"], [], [], []) == [BAD]
    for code in (4, MISSING):  # it was begun twice
        assert mooncake.batch_get_session_end(["key", "none"]) == 0
        found = mooncake.batch_get_into_multi_buffer_ranges(["key"], [[room.ptr]], [[4]], [[6]])
        assert found == [code]


def test_sessions_have_a_bound(block_server: Served, mooncake_namespace: None) -> None:
    store = opened(block_server.address, local_buffer_size=2500)
    for key in "abc":
        assert store.put(key, bytes(1000)) == 0
    assert store.batch_get_session_start(["a", "b", "c", "a"]) == [0, 0, FULL, 0]
    assert store.batch_get_session_end(["a", "b"]) == 0
    assert store.batch_get_session_start(["c", "b"]) == [0, FULL]
    assert store.close() == 0
    assert store.batch_get_session_start(["a"]) == [BAD]
    assert store.setup({"local_hostname": "h", "metadata_server": "m"}) == 0
    room = Room(1000)
    found = store.batch_get_into_multi_buffer_ranges(["c"], [[room.ptr]], [[1000]], [[0]])
    assert found == [MISSING], "close has ended the sessions"
    store.close()
    store = opened(block_server.address, local_buffer_size=0)
    assert store.batch_get_session_start(["a"]) == [BAD], "there is no memory for it"
    store.close()


def test_a_store_that_is_closed_meanwhile_keeps_no_session(
    mooncake: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mooncake.put("key", b"0123456789") == 0
    whole = Blocks.whole

    def closing(blocks: Blocks, keys: list[bytes]) -> list[BufferHandle | None]:
        found = [*whole(blocks, keys)]
        assert mooncake.close() == 0  # as another thread
        return found

    monkeypatch.setattr(Blocks, "whole", closing)
    assert mooncake.batch_get_session_start(["key"]) == [BAD]
    assert not mooncake._sessions


def test_defaults_are_mooncakes() -> None:
    """store.setup of Mooncake 0.3.13: a segment of 16 MiB, a local buffer of 1 GiB."""
    names = inspect.signature(Store.setup).parameters
    assert names["global_segment_size"].default == 16 << 20
    assert names["local_buffer_size"].default == 1 << 30
    assert [*names][1:12] == [
        "local_hostname",
        "metadata_server",
        "global_segment_size",
        "local_buffer_size",
        "protocol",
        "rdma_devices",
        "master_server_addr",
        "engine",
        "enable_ssd_offload",
        "ssd_offload_path",
        "tenant_id",
    ]


CALLED = """
setup setup_dummy put put_batch put_parts put_from batch_put_from batch_put_from_multi_buffers
get get_batch get_buffer batch_get_buffer get_into batch_get_into batch_get_into_multi_buffers
get_into_ranges batch_get_session_start batch_get_session_end
batch_get_into_multi_buffer_ranges is_exist batch_is_exist get_size remove batch_remove
remove_by_regex remove_all register_buffer unregister_buffer upsert upsert_batch upsert_parts
upsert_from batch_upsert_from health_check get_hostname close batch_get_replica_desc
get_replica_desc put_tensor get_tensor
"""


@pytest.mark.parametrize("name", CALLED.split())
def test_what_engines_call_is_there(name: str) -> None:
    assert callable(getattr(Store, name))
