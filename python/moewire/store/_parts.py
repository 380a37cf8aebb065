"""Keys, namespaces and requests, as the library takes them."""

from __future__ import annotations

import ctypes
import os
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, cast

from .. import _abi as abi
from .._base.numbers import integer, refuse
from ._memory import Memory, Views

Key = bytes | str
MAX_TIMEOUT_US = 3_600_000_000

_REQUEST_BYTES = ctypes.sizeof(abi.mw_store_request_t)


class Namespace(NamedTuple):
    """Whose blocks these are. Namespaces that differ in any one field share nothing."""

    model: str = ""
    weights: str = ""
    """A fingerprint of the weights."""
    dtype: str = ""
    layout: str = ""
    """Of keys and values in a block."""
    chunk: str = ""
    """Tokens per block."""
    parallel: str = ""
    """The parallel geometry, and the rank's place in it."""
    salt: str = ""


class Completion(NamedTuple):
    """How a submitted request has ended, by position of its keys."""

    id: int
    """As ``submit_*`` returned it."""
    ok: list[bool]
    lengths: list[int]
    """The bytes of blocks that a get has found or a put has stored, else -1.

    A block for which a get's buffers have no room has its length, and False in ``ok``.
    """
    error: str | None
    """Not None: the client was closed; or no segment holds a block of the put, with both
    numbers: the other blocks have fared as ``ok`` says."""


def utf8(name: str, text: str) -> bytes:
    """A text as the library takes it."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise refuse(name, repr(text), "text that UTF-8 has, without lone surrogates") from None


def namespace_of(given: str | Namespace) -> dict[str, bytes]:
    """The fields of ``mw_store_config_t`` that name the namespace."""
    if isinstance(given, str):
        given = Namespace(model=given)
    if not isinstance(given, Namespace):
        raise refuse("namespace", f"a {type(given).__name__}", "a str or a Namespace")
    if not any(given):
        raise refuse("namespace", "an empty one", "a name")
    for name, value in given._asdict().items():
        if not isinstance(value, str):
            raise refuse(f"namespace.{name}", f"a {type(value).__name__}", "a str")
    return {name: utf8(f"namespace.{name}", value) for name, value in given._asdict().items()}


def servers_of(given: str | Sequence[str] | None) -> bytes:
    if given is None:
        given = os.environ.get("MOEWIRE_STORE_SERVERS", "")
        if not given:
            raise refuse("servers", "nothing", "host:port, or MOEWIRE_STORE_SERVERS")
    names = [given] if isinstance(given, str) else list(given)
    if not names or not all(isinstance(name, str) for name in names):
        raise refuse("servers", repr(given), "host:port, one or several")
    return utf8("servers", ",".join(names))


def key_file_of(given: str | os.PathLike[str] | None) -> bytes:
    path = os.environ.get("MOEWIRE_KEY_FILE") if given is None else given
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise refuse(
            "key_file", repr(given), "a path, or MOEWIRE_KEY_FILE; there is no mode without"
        )
    return os.fsencode(path)


def key_of(key: Key, name: str = "key") -> bytes:
    if isinstance(key, str):
        key = utf8(name, key)
    if not isinstance(key, bytes):
        raise refuse(name, f"a {type(key).__name__}", "bytes or str")
    if type(key) is not bytes:  # one whose length may be another than that of its bytes
        key = bytes.__getitem__(key, slice(None))
    if not 1 <= len(key) <= abi.MW_STORE_MAX_KEY_BYTES:
        raise refuse(name, f"{len(key)} bytes", f"1 to {abi.MW_STORE_MAX_KEY_BYTES}")
    return key


class Keys(list[bytes]):
    """Keys of a request that are right, their lengths, and that of each key; 0 if they differ."""

    __slots__ = ("length", "lengths")

    def __init__(self, keys: Iterable[bytes]) -> None:
        super().__init__(keys)
        self.lengths = list(map(len, self))
        length = self.lengths[0] if self else 0
        self.length = length if self.lengths.count(length) == len(self) else 0


def keys_of(keys: Iterable[Key]) -> Keys:
    if isinstance(keys, str | bytes):
        raise refuse("keys", f"a {type(keys).__name__}", "a sequence of keys")
    given = list(keys)
    all_keys = _right(given) or Keys(key_of(key, f"keys[{at}]") for at, key in enumerate(given))
    if len(all_keys) > abi.MW_STORE_MAX_KEYS:
        raise refuse("keys", f"{len(all_keys)} keys", f"0 to {abi.MW_STORE_MAX_KEYS}")
    return all_keys


def _right(given: list[Any]) -> Keys | None:
    """The keys if all are of one type and right: found without a look at each in turn."""
    kinds = list(map(type, given))
    if kinds.count(bytes) < len(kinds):
        if kinds.count(str) < len(kinds):
            return None
        try:
            given = list(map(str.encode, given))
        except UnicodeEncodeError:
            return None
    right = Keys(given)
    if right.length:
        return right if right.length <= abi.MW_STORE_MAX_KEY_BYTES else None
    least, most = min(right.lengths, default=0), max(right.lengths, default=0)
    return right if least > 0 and most <= abi.MW_STORE_MAX_KEY_BYTES else None


def timeout_of(timeout_us: int | None, name: str = "timeout_us") -> int:
    return 0 if timeout_us is None else integer(name, timeout_us, 1, MAX_TIMEOUT_US)


_PIECE = array("Q", (0, 0))


def _table(addresses: array[int], lengths: array[int]) -> array[int]:
    """Both as ``mw_bytes_t``."""
    table = _PIECE * len(lengths)
    table[::2], table[1::2] = addresses, lengths
    return table


class Request:
    """A ``mw_store_request_t`` with all that it points to."""

    __slots__ = ("_held", "_memory", "_tables", "num_keys", "struct")

    def __init__(self, op: int, keys: Keys, **fields: int) -> None:
        self.num_keys = len(keys)
        self._memory: list[Views | Memory] = []
        joined = array("B", b"".join(keys))
        at = joined.buffer_info()[0]
        self._tables: list[array[int]] = []
        self._held: list[Any] = [joined]
        if not keys.length:
            *places, _ = accumulate(keys.lengths, initial=at)
            self._tables.append(_table(array("Q", places), array("Q", keys.lengths)))
            at = self._tables[0].buffer_info()[0]
        self.struct = abi.mw_store_request_t(
            size=_REQUEST_BYTES,
            op=op,
            num_keys=len(keys),
            keys=at,
            key_bytes=keys.length,
            **fields,
        )

    def parent(self, key: bytes) -> None:
        text = ctypes.create_string_buffer(key, len(key))
        self._held.append(text)
        self.struct.parent = abi.mw_bytes_t(ctypes.addressof(text), len(key))

    def buffers(self, buffers: Iterable[Any], writable: bool, alone: str = "") -> None:
        """Names the memory of the blocks; an item may be a list of buffers.

        Args:
            buffers: one for each key.
            writable: whether the library writes there.
            alone: the name of the argument that the only one is, for errors.
        """
        items = list(buffers)
        if len(items) != self.num_keys:
            raise refuse("buffers", f"{len(items)} buffers", f"{self.num_keys}, as many as keys")
        views = Views(len(items))
        self._memory.append(views)
        if views.fill(items, writable):
            self._point(views.addresses, views.lengths)
        else:
            views.release()
            self._pieces(items, writable, alone)

    def _pieces(self, items: Iterable[Any], writable: bool, alone: str) -> None:
        """The same for items of which one is a list or a tensor, or wrong."""
        found, counts, name = list[Memory](), array("I"), alone or "buffers"
        self._tables.append(counts)
        for at, item in enumerate(items):
            parts = item if isinstance(item, list | tuple) else (item,)
            for part in parts:
                found.append(Memory(name, part, writable, None if alone else at))
            counts.append(len(parts))
        self._memory += found
        self._point(
            array("Q", [part.address for part in found]),
            array("Q", [part.num_bytes for part in found]),
        )
        self.struct.pieces_per_key = counts.buffer_info()[0]

    def _point(self, addresses: array[int], lengths: array[int]) -> None:
        pieces = _table(addresses, lengths)
        self._tables.append(pieces)
        self.struct.num_pieces = len(addresses)
        self.struct.pieces = pieces.buffer_info()[0]

    def release(self) -> None:
        """Lets go of the buffers."""
        for part in self._memory:
            part.release()


class Outcome:
    """Where the library writes how the keys of a request fared."""

    __slots__ = ("lengths", "ok")

    def __init__(self, num_keys: int) -> None:
        self.ok = (ctypes.c_uint8 * num_keys)()
        self.lengths = (ctypes.c_int64 * num_keys)()

    def oks(self) -> list[bool]:
        return cast("list[bool]", memoryview(bytes(self.ok)).cast("?").tolist())

    def stored(self) -> list[int]:
        """The bytes of blocks that are OK, else -1."""
        return [n if ok else -1 for ok, n in zip(bytes(self.ok), self.lengths[:], strict=True)]
