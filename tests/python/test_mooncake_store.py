"""``mooncake.store`` on the block store: what each call returns, over a real server."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from harness.block_server import Served
from harness.mooncake import BAD, BAD_KEY, FULL, MISSING, Room, Store, config, opened
from moewire.compat import _mooncake_store as store
from moewire.compat._mooncake_store import _blocks


def test_a_block_and_a_miss(mooncake: Store) -> None:
    assert (mooncake.is_exist("a"), mooncake.get("a"), mooncake.get_buffer("a")) == (0, b"", None)
    assert (mooncake.get_size("a"), mooncake.remove("a"), mooncake.remove("a", True)) == (
        MISSING,
    ) * 3
    assert mooncake.put("a", b"some bytes") == 0
    assert (mooncake.is_exist("a"), mooncake.get("a"), mooncake.get_size("a")) == (
        1,
        b"some bytes",
        10,
    )
    buffer = mooncake.get_buffer("a")
    assert buffer is not None
    assert (bytes(buffer), len(buffer), buffer.size()) == (b"some bytes", 10, 10)
    assert ctypes.string_at(buffer.ptr(), 10) == b"some bytes"
    assert mooncake.remove("a") == 0
    assert (mooncake.is_exist("a"), mooncake.get_size("a"), mooncake.remove("a")) == (
        0,
        MISSING,
        MISSING,
    )


def test_an_existing_block_stays(mooncake: Store, caplog: pytest.LogCaptureFixture) -> None:
    """0, also for other bytes: they are counted."""
    assert mooncake.put("a", b"first") == mooncake.put("a", b"first") == 0
    assert mooncake.moewire_stats()["replies"].get("conflict", 0) == 0
    room = Room(b"third")
    assert mooncake.put("a", b"other") == mooncake.put_from("a", room.ptr, room.size) == 0
    assert mooncake.put_batch(["b", "a"], [b"new", b"other"]) == 0
    assert (mooncake.get("a"), mooncake.get("b")) == (b"first", b"new")
    assert mooncake.moewire_stats()["replies"]["conflict"] == 3
    assert caplog.text.count("that one stays") == 1


def test_the_master_of_lmcache(block_server: Served, mooncake_namespace: None) -> None:
    """Its dictionary has another name for the server, which must not become the default one."""
    one = store.MooncakeDistributedStore()
    said = {"local_hostname": "a", "metadata_server": "P2PHANDSHAKE"}
    assert one.setup({**said, "master_server_address": block_server.address}) == 0
    assert one.put("a", b"data") == 0
    assert one.close() == 0


def test_replaced(mooncake: Store) -> None:
    room = Room(b"third")
    assert mooncake.upsert("a", b"first") == 0
    assert mooncake.upsert("a", b"second") == 0
    assert mooncake.get("a") == b"second"
    assert mooncake.upsert_from("a", room.ptr, room.size) == 0
    assert mooncake.upsert_parts("b", b"in ", b"parts") == 0
    assert mooncake.upsert_batch(["b", "c"], [b"new b", b"new c"]) == 0
    assert mooncake.get_batch(["a", "b", "c"]) == [b"third", b"new b", b"new c"]


def test_only_other_blocks_are_replaced(mooncake: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of the same bytes is there all the while, and so is one that was not there before."""
    removed = []
    remove = _blocks.Blocks.remove

    def seen(self: _blocks.Blocks, keys: list[bytes]) -> list[bool]:
        removed.extend(keys)
        return remove(self, keys)

    monkeypatch.setattr(_blocks.Blocks, "remove", seen)
    assert mooncake.put_batch(["same", "other"], [b"1", b"2"]) == 0
    assert mooncake.upsert_batch(["same", "other", "new"], [b"1", b"22", b"3"]) == 0
    assert mooncake.get_batch(["same", "other", "new"]) == [b"1", b"22", b"3"]
    assert removed == [b"other"]


def test_replaced_blocks_keep_their_parents(
    mooncake: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key before each in the call, whichever blocks are replaced."""
    puts = []
    put = _blocks.Blocks.batch_put

    def seen(self: _blocks.Blocks, keys: list[bytes], *given: Any, parent: bytes | None) -> Any:
        puts.append((keys, parent))
        return put(self, keys, *given, parent=parent)

    assert mooncake.put_batch(["a", "b", "c", "d"], [b"1", b"2", b"3", b"4"]) == 0
    monkeypatch.setattr(_blocks.Blocks, "batch_put", seen)
    monkeypatch.setattr(_blocks, "_BATCH_BYTES", 3)
    assert mooncake.upsert_batch(["a", "b", "c", "d"], [b"x", b"2", b"y", b"z"]) == 0
    assert puts == [
        ([b"a", b"b", b"c"], None),
        ([b"a"], None),
        ([b"c"], b"b"),
        ([b"d"], b"c"),
        ([b"d"], b"c"),
    ]
    assert mooncake.get_batch(["a", "b", "c", "d"]) == [b"x", b"2", b"y", b"z"]


@pytest.mark.parametrize("change", [1, -1])
def test_replaced_while_it_is_read(
    mooncake: Store, monkeypatch: pytest.MonkeyPatch, change: int
) -> None:
    """By a block of another length than there is memory for: a miss."""
    assert mooncake.put("a", b"data") == 0
    lengths = _blocks.Blocks.lengths
    monkeypatch.setattr(
        _blocks.Blocks, "lengths", lambda *given: [n + change for n in lengths(*given)]
    )
    assert mooncake.batch_get_buffer(["a", "b"]) == [None, None]


def test_several(mooncake: Store) -> None:
    assert mooncake.put_batch(["a", "b"], [b"1", memoryview(b"22")]) == 0
    assert mooncake.put_parts("c", b"3", bytearray(b"3"), memoryview(b"3")) == 0
    assert mooncake.batch_is_exist(["a", "x", "c"]) == [1, 0, 1]
    assert mooncake.get_batch(["c", "x", "b"]) == [b"333", b"", b"22"]
    assert mooncake.batch_remove(["a", "x", "b"]) == [0, MISSING, 0]
    for call in (mooncake.batch_is_exist, mooncake.get_batch, mooncake.batch_remove):
        assert call([]) == []  # type: ignore[operator]
    assert mooncake.put_batch([], []) == 0


def test_keys_that_are_not_allowed(mooncake: Store, caplog: pytest.LogCaptureFixture) -> None:
    """By themselves: the others of the call are block_server."""
    long = "k" * 513
    room = Room(b"data")
    assert mooncake.put("", b"data") == mooncake.put(long, b"data") == BAD_KEY
    three = ["", "good", long]
    assert mooncake.batch_put_from(three, [room.ptr] * 3, [4] * 3) == [BAD_KEY, 0, BAD_KEY]
    assert mooncake.batch_is_exist(three) == [-1, 1, -1]
    assert mooncake.batch_get_into(three, [room.ptr] * 3, [4] * 3) == [BAD_KEY, 4, BAD_KEY]
    assert mooncake.batch_remove(three) == [BAD_KEY, 0, BAD_KEY]
    assert mooncake.get_size(long) == BAD_KEY
    assert mooncake.get(long) == b""
    assert "513 bytes given; allowed: 1 to 512" in caplog.text


def test_a_text_is_no_list_of_keys(mooncake: Store) -> None:
    for call in (mooncake.batch_is_exist, mooncake.get_batch, mooncake.batch_remove):
        for text in ("abc", b"abc"):
            with pytest.raises(TypeError, match=r"keys: a (str|bytes) given"):
                call(text)
    with pytest.raises(TypeError):
        mooncake.batch_put_from("ab", [1, 2], [3, 4])


def test_values_that_are_not_allowed(mooncake: Store) -> None:
    for value in (b"", "text", 5, None, memoryview(b"1234")[::2]):
        assert mooncake.put("a", value) == BAD
    assert mooncake.put_parts("a") == mooncake.put_parts("a", b"", b"") == BAD
    assert mooncake.put_batch(["a", "b"], [b"1"]) == BAD
    assert mooncake.batch_is_exist(["a", "b"]) == [0, 0]


def test_how_blocks_are_kept(mooncake: Store, caplog: pytest.LogCaptureFixture) -> None:
    on, off = store.SoftPinAction.ENABLE, store.SoftPinAction.DISABLE
    for good in (
        {"replica_num": 3},
        {"soft_pin_action": on, "soft_pin_ttl_ms": 1000},
        {"soft_pin_action": on, "soft_pin_ttl_ms": (1 << 64) - 1},
        {"soft_pin_action": off},
        {"with_soft_pin": True, "with_hard_pin": True, "data_type": store.ObjectDataType.TENSOR},
        {"preferred_segment": "a:1", "prefer_alloc_in_same_node": True, "group_ids": ["g"]},
    ):
        assert mooncake.put("a", b"data", config(**good)) == 0
    assert caplog.text.count("replica_num is 3; a block has one copy") == 1
    room = Room(b"data")
    for bad in (
        {"replica_num": 0},
        {"replica_num": "2"},
        {"nof_replica_num": 1},
        {"dfs_replica_num": 1},
        {"soft_pin_ttl_ms": 1000},
        {"soft_pin_action": off, "soft_pin_ttl_ms": 1000},
        {"group_ids": ["g", "h"]},
    ):
        assert mooncake.put("b", b"data", config(**bad)) == BAD
        assert mooncake.batch_put_from(["b"], [room.ptr], [4], config(**bad)) == [BAD]
    assert mooncake.is_exist("b") == 0


def test_a_configuration() -> None:
    one = config()
    assert (one.replica_num, one.with_soft_pin, one.preferred_segment) == (1, False, "")
    one.with_soft_pin = True
    assert one.soft_pin_action is store.SoftPinAction.ENABLE
    for bad in (-1, 1 << 64, "1", 1.5):
        with pytest.raises(TypeError, match="soft_pin_ttl_ms"):
            one.soft_pin_ttl_ms = bad  # type: ignore[assignment]
    assert one.soft_pin_ttl_ms is None
    one.soft_pin_ttl_ms = 77
    assert "soft_pin_ttl_ms: 77" in str(one)
    assert hasattr(store.ReplicateConfig, "group_ids")
    with pytest.raises(AttributeError):
        one.session_ids = ["s"]  # type: ignore[attr-defined]


def test_pinned_blocks_stay(tmp_path: Path, block_server: Served, mooncake_namespace: None) -> None:
    """Where what was put before and after them is evicted."""
    with Served(tmp_path, "--capacity", "4MiB", key=block_server.key) as small:
        mooncake = opened(small.address)
        data = bytes(30_000)
        soft = config(soft_pin_action=store.SoftPinAction.ENABLE)
        ended = config(soft_pin_action=store.SoftPinAction.DISABLE)
        for key in ("unpinned", "hard", "soft", "ended"):
            kept = config(with_hard_pin=key == "hard") if key in ("unpinned", "hard") else soft
            assert mooncake.put(key, data, kept) == 0
        assert mooncake.put("ended", data, ended) == 0
        for n in range(600):
            assert mooncake.put(f"{n}", data) == 0
        assert mooncake.batch_is_exist(["unpinned", "hard", "soft", "ended"]) == [0, 1, 1, 0]
        assert mooncake.close() == 0


def test_no_room(mooncake: Store, caplog: pytest.LogCaptureFixture) -> None:
    """A block that no segment holds; one that no store takes."""
    room = Room(3 << 20)
    assert mooncake.put("large", bytes(3 << 20)) == FULL
    assert mooncake.batch_put_from(["large", "b"], [room.ptr] * 2, [room.size, 4]) == [FULL, 0]
    with mmap.mmap(-1, (256 << 20) + 1) as pages:
        ptr = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        sizes = [4, (256 << 20) + 1, 4]
        assert mooncake.batch_put_from(["c", "huge", "d"], [ptr] * 3, sizes) == [0, FULL, 0]
        assert mooncake.put_from("c", ptr, sizes[1]) == 0, "it is there"
    assert mooncake.batch_is_exist(["large", "b", "c", "huge", "d"]) == [0, 1, 1, 0, 1]
    other = Room(b"other")
    both = [room.ptr, other.ptr]
    assert mooncake.batch_put_from(["large", "b"], both, [room.size, 5]) == [FULL, 0]
    assert "a segment is too small" in caplog.text


def test_removed(mooncake: Store, block_server: Served) -> None:
    """Of this namespace, and no other."""
    keys = ["a1", "a2", "b1", "b2", "other"]
    others = opened(block_server.address, tenant_id="other")
    for one in (mooncake, others):
        assert one.put_batch(keys, [b"data"] * 5) == 0
    assert mooncake.remove_by_regex("[") == BAD
    assert mooncake.remove_by_regex("1$", True) == 2
    assert mooncake.batch_is_exist(keys) == [0, 1, 0, 1, 1]
    assert mooncake.remove_by_regex("^x") == 0
    assert mooncake.remove_all() == 3
    assert mooncake.remove_all(force=True) == 0
    assert others.batch_is_exist(keys) == [1] * 5
    assert others.close() == 0


def test_where_blocks_lie(mooncake: Store, tmp_path: Path, block_server: Served) -> None:
    files = ("--storage", "file", "--path", str(tmp_path / "blocks"), "--capacity", "4MiB")
    with Served(tmp_path, *files, key=block_server.key) as server:
        on_disk = opened(server.address)
        for one, want in ((mooncake, (True, False)), (on_disk, (False, True))):
            assert one.put("a", b"b") == 0
            (copy,) = one.get_replica_desc("a")
            assert (copy.is_memory_replica(), copy.is_disk_replica()) == want
            assert not copy.is_local_disk_replica()
            assert copy.status is store.ReplicaStatus.COMPLETE
            assert one.get_replica_desc("b") == []
        assert on_disk.close() == 0


def test_calls_that_there_are_not(mooncake: Store) -> None:
    """By name, so that callers that look for them see it."""
    for name in ("put_tensor_with_tp", "create_copy_task", "mount_segment", "query_task"):
        assert not hasattr(mooncake, name)
        with pytest.raises(AttributeError, match=f"moewire's .* has no '{name}'"):
            getattr(mooncake, name)


def test_as_a_dictionary(mooncake: Store, seed: int) -> None:
    """Random calls against a plain dict that keeps the first value of a key."""
    random, model = Random(seed), dict[str, bytes]()
    room = Room(2000)
    for _ in range(600):
        key = f"key {random.randrange(12)}"
        size = random.randrange(1, 2000)
        data = random.randbytes(size)
        match random.randrange(7):
            case 0:
                assert mooncake.put(key, data) == 0
                model.setdefault(key, data)
            case 1:
                ctypes.memmove(room.ptr, data, size)
                cut = random.randrange(1, size) if size > 1 else 1
                pieces, sizes = [room.ptr, room.ptr + cut][: 1 + (size > 1)], [cut, size - cut]
                many = [[pieces], [sizes[: len(pieces)]]]
                assert mooncake.batch_put_from_multi_buffers([key], *many) == [0]
                model.setdefault(key, data)
            case 2:
                assert mooncake.upsert(key, data) == 0
                model[key] = data
            case 3:
                assert mooncake.remove(key) == (0 if model.pop(key, None) else MISSING)
            case 4:
                have = model.get(key)
                want = MISSING if have is None else BAD if len(have) > size else len(have)
                assert mooncake.get_into(key, room.ptr, size) == want
                if want > 0:
                    assert room.bytes()[:want] == have
            case 5:
                assert mooncake.get(key) == model.get(key, b"")
            case 6:
                assert mooncake.get_size(key) == (len(model[key]) if key in model else MISSING)
    keys = [f"key {n}" for n in range(12)]
    assert mooncake.batch_is_exist(keys) == [int(key in model) for key in keys]


PROGRAM = """
import sys
import moewire.compat.mooncake, moewire.compat.mooncake_store as facade
assert not facade.is_installed()
if "both" in sys.argv:
    moewire.compat.mooncake.install()
facade.install()
facade.install()
assert facade.is_installed() and moewire.compat.mooncake.is_installed() == ("both" in sys.argv)
from mooncake.store import MooncakeDistributedStore, ReplicateConfig, SoftPinAction
import mooncake, mooncake.store, importlib.util
assert importlib.util.find_spec("mooncake.store") is not None
assert mooncake.store.MooncakeDistributedStore is MooncakeDistributedStore
assert MooncakeDistributedStore.__module__ == "moewire.compat._mooncake_store._store"
for name in mooncake.store.__all__:
    getattr(mooncake.store, name)
assert not hasattr(mooncake.store, "EngramStore")
assert "torch" not in sys.modules or "both" in sys.argv
if "installed" in sys.argv:
    from mooncake.engine import TransferEngine
    assert TransferEngine == "theirs" and mooncake.own == "theirs"
print("done")
"""


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize("value", ["", "0", "1", "yes"])
def test_engines_install_it(engine: str, value: str) -> None:
    """In each of their processes, if they are told to."""
    program = (
        f"from moewire.integrations import {engine}\n{engine}.activate()\n"
        "from moewire.compat.mooncake_store import is_installed\nprint(is_installed())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "MOEWIRE_MOONCAKE_STORE": value},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if value == "yes":
        assert "InvalidArgument: MOEWIRE_MOONCAKE_STORE" in done.stderr
    else:
        assert (done.returncode, done.stdout) == (0, f"{value == '1'}\n"), done.stderr


@pytest.mark.parametrize("how", ["alone", "both", "installed", "both installed"])
def test_installed(tmp_path: Path, how: str) -> None:
    """Its other modules, and Mooncake EP's, are not in the way."""
    theirs = tmp_path / "mooncake"
    theirs.mkdir()
    if "installed" in how:
        (theirs / "__init__.py").write_text("own = 'theirs'\n")
        (theirs / "engine.py").write_text("TransferEngine = 'theirs'\n")
        (theirs / "store.py").write_text("raise ImportError('the real one')\n")
    else:
        theirs.rmdir()
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; sys.path.insert(0, {str(tmp_path)!r})" + PROGRAM,
            *how.split(),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
