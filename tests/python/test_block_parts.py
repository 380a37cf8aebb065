"""What a request of the block store tells the library, compared with a reading of its memory."""

from __future__ import annotations

import ctypes
import random

import numpy
import pytest

from moewire import _abi as abi
from moewire.errors import InvalidArgument
from moewire.store._parts import Keys, Outcome, Request, keys_of


class _Named(bytes):
    """Not bytes itself, nor as long as it says."""

    def __len__(self) -> int:
        return 400


def _read(address: int, num: int) -> list[tuple[int, int]]:
    table = (abi.mw_bytes_t * num).from_address(address)
    return [(part.address, part.num_bytes) for part in table]


def _keys(filled: abi.mw_store_request_t) -> list[bytes]:
    if filled.key_bytes:
        joined = ctypes.string_at(filled.keys, filled.num_keys * filled.key_bytes)
        return [
            joined[at : at + filled.key_bytes] for at in range(0, len(joined), filled.key_bytes)
        ]
    return [ctypes.string_at(*key) for key in _read(filled.keys, filled.num_keys)]


@pytest.mark.parametrize("lengths", [(1, 2, 36, 511, 512), (1,), (36,), (512,)])
def test_request_has_every_key_and_piece(lengths: tuple[int, ...], seed: int) -> None:
    source = random.Random(seed)
    for num in (1, 2, 15, abi.MW_STORE_MAX_KEYS):
        keys = Keys(source.randbytes(source.choice(lengths)) for _ in range(num))
        buffers = [[bytearray(at % 5), bytearray(8)][: 1 + at % 2] for at in range(num)]
        request = Request(abi.MW_STORE_GET, keys)
        request.buffers(buffers, writable=True)
        request.parent(b"before")
        filled = request.struct
        assert _keys(filled) == keys
        assert bool(filled.key_bytes) == (len({*map(len, keys)}) == 1), (
            "no table where none is needed"
        )
        assert ctypes.string_at(filled.parent.address, filled.parent.num_bytes) == b"before"
        counts = (ctypes.c_uint32 * num).from_address(filled.pieces_per_key)
        assert list(counts) == [len(parts) for parts in buffers]
        pieces = [piece for parts in buffers for piece in parts]
        places = _read(filled.pieces, filled.num_pieces)
        for at, (piece, (address, num_bytes)) in enumerate(zip(pieces, places, strict=True)):
            piece[:] = bytes([at % 251]) * len(piece)
            assert ctypes.string_at(address, num_bytes) == bytes(piece)
        request.release()


def test_keys_of_any_kinds() -> None:
    keys: list[bytes | str] = [b"one", "zwölf", _Named(b"three")]
    wanted = [b"one", "zwölf".encode(), b"three"]
    for some in (slice(0, 1), slice(1, 2), slice(2, 3), slice(0, 3), slice(0, 0)):
        assert keys_of(keys[some]) == wanted[some]
        assert keys_of(iter(keys[some])) == wanted[some]
    assert keys_of(["ä" * 256] * abi.MW_STORE_MAX_KEYS) == ["ä".encode() * 256] * 512
    given = list(wanted)
    assert keys_of(given) is not given  # it may change meanwhile


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ([b"a", b"", b"b" * 513], "keys[1]: 0 bytes given; allowed: 1 to 512"),
        ([b"a", b"b" * 513], "keys[1]: 513 bytes given; allowed: 1 to 512"),
        (["a", "ä" * 257], "keys[1]: 514 bytes given; allowed: 1 to 512"),
        (["a", b"b", 3], "keys[2]: a int given; allowed: bytes or str"),
        (
            ["a", "\ud800"],
            "keys[1]: '\\ud800' given; allowed: text that UTF-8 has, without lone surrogates",
        ),
        ([bytearray(b"a")], "keys[0]: a bytearray given; allowed: bytes or str"),
        ([b"a"] * 513, "keys: 513 keys given; allowed: 0 to 512"),
        ([b"a"] * 513 + [b""], "keys[513]: 0 bytes given; allowed: 1 to 512"),
        (b"a", "keys: a bytes given; allowed: a sequence of keys"),
    ],
)
def test_wrong_keys_are_named(keys: object, text: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        keys_of(keys)  # type: ignore[arg-type]
    assert str(error.value) == text


def test_wrong_buffers_are_named() -> None:
    request = Request(abi.MW_STORE_GET, Keys([b"a", b"b"]))
    with pytest.raises(InvalidArgument, match=r"^buffers\[1\]: a bytes given; allowed: a writable"):
        request.buffers([bytearray(1), [bytearray(1), b"read-only"]], writable=True)
    with pytest.raises(InvalidArgument, match=r"^buffers\[0\]: a ndarray given"):
        request.buffers([numpy.arange(10)[::2], bytearray(1)], writable=True)
    with pytest.raises(InvalidArgument, match=r"^data: a int given"):
        Request(abi.MW_STORE_PUT, Keys([b"a"])).buffers([3], False, "data")


def test_outcome() -> None:
    outcome = Outcome(3)
    outcome.ok[0], outcome.ok[2] = 1, 1
    outcome.lengths[0], outcome.lengths[1], outcome.lengths[2] = 1 << 40, 9, 0
    assert outcome.oks() == [True, False, True]
    assert outcome.stored() == [1 << 40, -1, 0]
