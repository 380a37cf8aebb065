"""``mooncake.store``: memory that its callers name by address, and tensors."""

from __future__ import annotations

import ctypes
import math
import mmap
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from harness.mooncake import BAD, MISSING, Room, Store, config
from moewire.compat import _mooncake_store as store
from moewire.compat._mooncake_store import _blocks, _memory


def test_memory_by_address(mooncake: Store, seed: int) -> None:
    data = Random(seed).randbytes(50_000)
    room, into = Room(data), Room(60_000)
    assert mooncake.register_buffer(room.ptr, room.size) == 0
    assert mooncake.put_from("a", room.ptr, room.size) == 0
    assert mooncake.put_from("b", room.ptr + 1000, 1) == 0
    assert mooncake.get_into("a", into.ptr, into.size) == 50_000
    assert into.bytes() == data + bytes(10_000)
    keys = ["b", "none", "a"]
    assert mooncake.batch_get_into(keys, [into.ptr] * 3, [4, 4, 60_000]) == [1, MISSING, 50_000]
    assert mooncake.unregister_buffer(room.ptr) == 0
    assert mooncake.unregister_buffer(room.ptr) == BAD


def test_memory_that_is_too_small(mooncake: Store) -> None:
    assert mooncake.put("a", b"0123456789") == 0
    into = Room(9)
    assert mooncake.get_into("a", into.ptr, 9) == BAD
    pieces = [into.ptr, into.ptr + 5]
    assert mooncake.batch_get_into_multi_buffers(["a", "x"], [pieces] * 2, [[5, 4]] * 2) == [
        BAD,
        MISSING,
    ]
    assert into.bytes() == bytes(9)


def test_blocks_in_pieces(mooncake: Store, seed: int) -> None:
    random = Random(seed)
    data = [random.randbytes(3000) for _ in range(3)]
    rooms = [Room(one) for one in data]
    ptrs = [[room.ptr, room.ptr + 100, room.ptr + 101] for room in rooms]
    keys, sizes = ["a", "b", "c"], [[100, 1, 2899]] * 3
    assert mooncake.batch_put_from_multi_buffers(keys, ptrs, sizes, config()) == [0] * 3
    assert mooncake.get_batch(keys) == data
    into = Room(9000)
    to = [[into.ptr + 3000 * at, into.ptr + 3000 * at + 2000] for at in (2, 1, 0)]
    assert mooncake.batch_get_into_multi_buffers(keys, to, [[2000, 1000]] * 3, True) == [3000] * 3
    assert into.bytes() == data[2] + data[1] + data[0]


BAD_MEMORY: list[tuple[Callable[[Room], tuple[int, int]], str]] = [
    (lambda room: (0, 4), "buffer_ptr: 0 given"),
    (lambda room: (-1, 4), "buffer_ptr: -1 given"),
    (lambda room: (1 << 63, 4), f"buffer_ptr: {1 << 63} given"),
    (lambda room: (1 << 80, 4), f"buffer_ptr: {1 << 80} given"),
    (lambda room: (room.ptr, 0), "size: 0 given"),
    (lambda room: (room.ptr, -4), "size: -4 given"),
    (lambda room: (room.ptr, (1 << 63) - room.ptr), "allowed: 1 or more"),
    (lambda room: (8, 4), "the CPU cannot read memory at 0x8"),
    (lambda room: (1 << 62, 4), "the CPU cannot read memory at"),
    (lambda room: (room.ptr, 1 << 46), "the CPU cannot read memory at"),
]


@pytest.mark.parametrize(("memory", "text"), BAD_MEMORY, ids=range(len(BAD_MEMORY)))
def test_addresses_that_are_none(
    mooncake: Store,
    memory: Callable[[Room], tuple[int, int]],
    text: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A code and a line for the block that they are of; the other one is block_server."""
    good = Room(b"good")
    ptr, size = memory(good)
    keys = ["bad", "good"]
    assert mooncake.register_buffer(ptr, size) == BAD
    assert text in caplog.text
    caplog.clear()
    assert mooncake.put_from("bad", ptr, size) == mooncake.upsert_from("bad", ptr, size) == BAD
    assert mooncake.batch_put_from(keys, [ptr, good.ptr], [size, 4]) == [BAD, 0]
    assert mooncake.batch_is_exist(keys) == [0, 1]
    assert mooncake.batch_get_into(["good"] * 2, [ptr, good.ptr], [size, 4]) == [BAD, 4]
    pieces = [[good.ptr, ptr], [good.ptr, good.ptr + 2]]
    assert mooncake.batch_get_into_multi_buffers(["good"] * 2, pieces, [[2, size], [2, 2]]) == [
        BAD,
        4,
    ]
    assert caplog.text.count(text) == 5


def test_memory_that_cannot_be_read(mooncake: Store) -> None:
    """As a device's: it is in the address space, and the CPU may not."""
    libc = ctypes.CDLL(None, use_errno=True)
    with mmap.mmap(-1, 3 * mmap.PAGESIZE) as pages:
        first = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        middle, size = ctypes.c_void_p(first + mmap.PAGESIZE), ctypes.c_size_t(mmap.PAGESIZE)
        assert libc.mprotect(middle, size, 0) == 0
        for at, length in ((mmap.PAGESIZE, 10), (0, mmap.PAGESIZE + 1), (8100, 93)):
            assert mooncake.put_from("a", first + at, length) == BAD
        assert mooncake.put_from("a", first, mmap.PAGESIZE) == 0
        assert libc.mprotect(middle, size, mmap.PROT_READ) == 0


@pytest.mark.parametrize("wrong", ["pointers", "sizes", "in one"])
def test_as_many_as_keys(mooncake: Store, wrong: str) -> None:
    room = Room(b"data")
    ptrs, sizes = [room.ptr] * (3 - (wrong == "pointers")), [4] * (3 - (wrong == "sizes"))
    many = [[ptr] for ptr in ptrs], [[size] for size in sizes]
    want = [BAD] * 3
    if wrong == "in one":
        many[1][1] *= 2
        want = [MISSING, BAD, MISSING]
    else:
        assert mooncake.batch_put_from(["a", "b", "c"], ptrs, sizes) == want
        assert mooncake.batch_get_into(["a", "b", "c"], ptrs, sizes) == want
        assert mooncake.batch_put_from_multi_buffers(["a", "b", "c"], *many) == want
    assert mooncake.batch_get_into_multi_buffers(["a", "b", "c"], *many) == want


def test_more_keys_than_a_request_has(mooncake: Store) -> None:
    keys = [f"key {n}" for n in range(1100)]
    room, into = Room(b"".join(b"%4d" % n for n in range(1100))), Room(4400)
    ptrs = [room.ptr + 4 * n for n in range(1100)]
    assert mooncake.batch_put_from(keys, ptrs, [4] * 1100) == [0] * 1100
    assert mooncake.batch_is_exist([*keys, "x"]) == [1] * 1100 + [0]
    to = [into.ptr + 4 * n for n in range(1100)]
    assert mooncake.batch_get_into(keys, to, [4] * 1100) == [4] * 1100
    assert into.bytes() == room.bytes()
    assert len(mooncake.batch_get_replica_desc([*keys, "x"])) == 1100
    assert mooncake.remove_by_regex("^key [0-9]$") == 10
    assert mooncake.remove_all() == 1090


def test_keys_of_a_call_are_a_chain(mooncake: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it takes several requests."""
    parents, put = [], _blocks.Blocks.batch_put

    def seen(self: Any, keys: list[bytes], *given: Any, parent: bytes | None) -> list[bool]:
        parents.append((keys[0], parent))
        return put(self, keys, *given, parent=parent)

    monkeypatch.setattr(_blocks.Blocks, "batch_put", seen)
    keys = [f"{n}" for n in range(1100)]
    assert mooncake.put_batch(keys, [b"data"] * 1100) == 0
    assert parents == [(b"0", None), (b"512", b"511"), (b"1024", b"1023")]


def test_batches(seed: int) -> None:
    """Each as large as a put may be, none larger, none that could have had one more."""
    random = Random(seed)
    for _ in range(200):
        sizes = [random.choice([1, 1 << 20, 20 << 20, 63 << 20, 65 << 20]) for _ in range(40)]
        sizes += [1] * random.choice([0, 511, 512, 513, 1500])
        found = list(_blocks._batches(sizes))
        assert [at for begin, end in found for at in range(begin, end)] == [*range(len(sizes))]
        for begin, end in found:
            total = sum(sizes[begin:end])
            assert end - begin == 1 or (total <= 64 << 20 and end - begin <= 512)
            full = end - begin == 512 or end == len(sizes) or total + sizes[end] > 64 << 20
            assert full


def test_parts_of_blocks(mooncake: Store) -> None:
    one, two = b"0123456789", b"abcdefghij"
    assert mooncake.put_batch(["one", "two"], [one, two]) == 0
    a, b = Room(20), Room(20)
    for room in (a, b):
        assert mooncake.register_buffer(room.ptr, room.size) == 0
    got = mooncake.get_into_ranges(
        [a.ptr, b.ptr + 10],
        [["one", "none", "two"], ["two", "one", "k" * 513]],
        [[[0, 18], [4], [10]], [[0, 5, 0], [0, 0], [0]]],
        [[[2, 8], [0], [0]], [[8, 9, -1], [0, 0], [0]]],
        [[[4, 2], [1], [3]], [[2, 2, 1], [11, 0], [1]]],
    )
    assert got == [
        [[4, 2], [MISSING], [3]],
        [[2, BAD, BAD], [BAD, BAD], [BAD]],
    ]
    assert a.bytes() == b"2345" + bytes(6) + b"abc" + bytes(5) + b"89"
    assert b.bytes() == bytes(10) + b"ij" + bytes(8)
    assert mooncake.get_into_ranges([a.ptr], [["one"]], [[[17]]], [[[0]]], [[[4]]]) == [[[BAD]]]
    assert mooncake.get_into_ranges([a.ptr], [["one"]], [[[0, 1]]], [[[0]]], [[[4]]]) == [
        [[BAD, BAD]]
    ]
    assert mooncake.get_into_ranges([a.ptr], [["one", "x"]], [[[0]]], [[[0]]], [[[4]]]) == [[[BAD]]]
    assert mooncake.get_into_ranges([a.ptr] * 2, [["one"]], [[[0]]], [[[0]]], [[[4]]]) == [[[BAD]]]
    assert mooncake.unregister_buffer(a.ptr) == 0
    assert mooncake.get_into_ranges([a.ptr], [["one"]], [[[0]]], [[[0]]], [[[4]]]) == [[[BAD]]]


def test_memory_of_the_host(mooncake: Store, caplog: pytest.LogCaptureFixture) -> None:
    allocator = store.MooncakeHostMemAllocator()
    ptr = allocator.alloc(1 << 20)
    assert ptr % mmap.PAGESIZE == 0
    assert ctypes.string_at(ptr, 1 << 20) == bytes(1 << 20)
    ctypes.memset(ptr, 7, 100)
    assert mooncake.put_from("a", ptr, 100) == 0
    assert mooncake.get("a") == b"\7" * 100
    assert allocator.free(ptr) == 0
    assert allocator.free(ptr) == BAD
    for bad in (0, -1, 1 << 62, 1 << 70):
        assert allocator.alloc(bad) == 0
    assert "was not allocated here" in caplog.text


def test_cpus_of_a_node(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    chosen: list[set[int]] = []
    monkeypatch.setattr("os.sched_setaffinity", lambda _, cpus: chosen.append(cpus))
    monkeypatch.setattr(Path, "read_text", lambda path: "0-2,7,9-9\n")
    store.bind_to_numa_node(0)
    assert chosen == [{0, 1, 2, 7, 9}]
    monkeypatch.undo()
    store.bind_to_numa_node(4095)
    assert "bind_to_numa_node(4095)" in caplog.text
    with pytest.raises(ValueError):
        _memory._cpus("none")


def bits(tensor: torch.Tensor) -> list[int]:
    whole = tensor.contiguous().view(-1)
    return whole.view(torch.uint8).tolist() if tensor.numel() else []


def test_tensors(mooncake: Store, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    some = torch.randn(4, 6, generator=generator)
    given = [
        some,
        some.to(torch.bfloat16).T,  # with strides
        some.to(torch.float8_e4m3fn),
        torch.tensor(7),
        torch.zeros(3, 0, 2, dtype=torch.int16),
        some > 0,
    ]
    keys = [f"t{n}" for n in range(len(given))]
    assert mooncake.batch_put_tensor(keys, given) == [0] * len(given)
    for want, found in zip(given, mooncake.batch_get_tensor(keys), strict=True):
        assert (found.dtype, found.shape) == (want.dtype, want.shape)
        assert bits(found) == bits(want)
    assert mooncake.get_tensor("none") is None
    assert mooncake.put_tensor("t0", "text") == mooncake.batch_pub_tensor(["a"], [])[0] == BAD
    assert mooncake.pub_tensor("t0", some + 1, config(with_hard_pin=True)) == 0
    assert torch.equal(mooncake.get_tensor("t0"), some)
    assert mooncake.upsert_tensor("t0", some + 1) == 0
    assert torch.equal(mooncake.get_tensor("t0"), some + 1)
    into = Room(4096)
    there = mooncake.get_tensor_into("t0", into.ptr, into.size)
    assert torch.equal(there, some + 1)
    assert into.ptr <= there.data_ptr() < into.ptr + into.size
    assert mooncake.put_tensor_from("copy", into.ptr, mooncake.get_size("t0")) == 0
    assert torch.equal(mooncake.get_tensor("copy"), some + 1)
    assert mooncake.get_tensor_into("t0", into.ptr, 20) is None


def test_what_is_no_tensor(mooncake: Store, seed: int) -> None:
    """Blocks that were not put as tensors, and those of which bytes are others."""
    assert mooncake.put_tensor("t", torch.arange(6)) == 0
    whole = mooncake.get("t")
    random = Random(seed)
    wrong = [b"text", whole[:-1], whole + b"x", whole[:20], b"X" + whole[1:]]
    for _ in range(200):
        changed = bytearray(whole)
        changed[random.randrange(40)] = random.randrange(256)
        wrong.append(bytes(changed))
    for shape in ((-2, -3), (0, 1 << 62, 1 << 62), (0, -1)):
        ones = (1,) * (len(shape) - 1)
        assert mooncake.put_tensor(f"{shape}", torch.arange(math.prod(shape)).view(*ones, -1)) == 0
        changed = bytearray(mooncake.get(f"{shape}"))
        struct.pack_into(f"<{len(shape)}q", changed, 32, *shape)
        wrong.insert(0, bytes(changed))
    for n, block in enumerate(wrong):
        assert mooncake.put(f"{n}", block) == 0
    found = mooncake.batch_get_tensor([f"{n}" for n in range(len(wrong))])
    assert found[:8] == [None] * 8
    for one in found[8:]:
        assert one is None or one.nbytes == 48
