"""How ranks meet: everybody's metadata bytes to everybody, before a buffer connects.

Through a store wherever one can be had: no collective, a deadline, and an error that names
the ranks that did not come. Only a group without a store uses one collective.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist

from ._check import integer, refuse
from ._runtime import MAX_METADATA_BYTES
from .errors import DeadlineError, MoewireError

_LENGTH = struct.Struct("<I")
_RECORD_BYTES = _LENGTH.size + MAX_METADATA_BYTES
_SHORTEST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.02


class Meeting(Protocol):
    """One exchange among all ranks."""

    rank: int
    num_ranks: int

    def exchange(self, own: bytes, timeout_us: int) -> list[bytes]:
        """Everybody's bytes by rank."""


class Store(Protocol):
    """What is used of ``torch.distributed.Store``."""

    def add(self, key: str, amount: int, /) -> int: ...
    def set(self, key: str, value: bytes, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def check(self, keys: list[str], /) -> bool: ...


class StoreMeeting:
    """Meets in a store. The n-th meeting of a rank under one prefix has keys of its own."""

    def __init__(self, store: Store, rank: int, num_ranks: int, prefix: str) -> None:
        if not all(hasattr(store, name) for name in ("add", "set", "get", "check")):
            raise refuse("store", type(store).__name__, "a torch.distributed.Store")
        self.num_ranks = integer("world_size", num_ranks, 1, (1 << 31) - 1)
        self.rank = integer("rank", rank, 0, self.num_ranks - 1)
        if not isinstance(prefix, str) or not prefix:
            raise refuse("prefix", repr(prefix), "a string that is not empty")
        self._store = store
        self._prefix = prefix

    def exchange(self, own: bytes, timeout_us: int) -> list[bytes]:
        """Sets this rank's key, then waits for the others'."""
        meeting = self._store.add(f"{self._prefix}/count/{self.rank}", 1)
        keys = [f"{self._prefix}/{meeting}/{rank}" for rank in range(self.num_ranks)]
        self._store.set(keys[self.rank], own)
        self._wait(keys, timeout_us)
        return [bytes(self._store.get(key)) for key in keys]

    def _wait(self, keys: list[str], timeout_us: int) -> None:
        # Asking is interruptible and knows who is missing; a store's own wait is neither.
        deadline = None if timeout_us < 0 else time.monotonic() + timeout_us / 1e6
        pause = _SHORTEST_PAUSE_S
        while not self._store.check(keys):
            if deadline is not None and time.monotonic() > deadline:
                raise DeadlineError(self._missing_text(keys, timeout_us))
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _missing_text(self, keys: list[str], timeout_us: int) -> str:
        missing = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
        names = ", ".join(str(rank) for rank in missing)
        return (
            f"rank {self.rank} of {self.num_ranks} waited {timeout_us / 1e6:g} s for the others "
            f"to construct their Buffer under {keys[0].rsplit('/', 1)[0]!r}; missing: rank {names}"
        )


class CollectiveMeeting:
    """Meets by one ``all_gather`` of tensors, on the device that the group's backend needs."""

    def __init__(self, group: dist.ProcessGroup, rank: int, num_ranks: int) -> None:
        self._group = group
        self.rank = rank
        self.num_ranks = num_ranks

    def exchange(self, own: bytes, timeout_us: int) -> list[bytes]:
        """One collective; its deadline is the group's own, ``timeout_us`` is not used."""
        device = collective_device(self._group)
        record = torch.frombuffer(bytearray(pack_record(own)), dtype=torch.uint8).to(device)
        records = [torch.empty_like(record) for _ in range(self.num_ranks)]
        dist.all_gather(records, record, group=self._group)
        return [unpack_record(bytes(item.cpu().tolist())) for item in records]


def pack_record(data: bytes) -> bytes:
    """Length and bytes, padded: every rank's record has the same size."""
    if len(data) > MAX_METADATA_BYTES:
        raise MoewireError(f"metadata of {len(data)} bytes; at most {MAX_METADATA_BYTES}")
    return (_LENGTH.pack(len(data)) + data).ljust(_RECORD_BYTES, b"\0")


def unpack_record(record: bytes) -> bytes:
    """The bytes in a record."""
    (length,) = _LENGTH.unpack_from(record)
    return record[_LENGTH.size : _LENGTH.size + length]


def collective_device(group: dist.ProcessGroup) -> torch.device:
    """Where tensors must lie for a collective: the CPU, unless the backend is CUDA-only."""
    kinds = {device.type for device in cast("Any", group)._device_types}
    if "cpu" in kinds or not kinds:
        return torch.device("cpu")
    if "cuda" in kinds:
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device(sorted(kinds)[0])


def group_store(group: dist.ProcessGroup) -> Store | None:
    """The group's own store, or None. torch has no documented way to ask for it."""
    getters: Sequence[Any] = (
        getattr(group, "get_group_store", None),
        lambda: cast("Any", dist.distributed_c10d)._get_process_group_store(group),
    )
    for getter in getters:
        try:
            store = getter() if getter is not None else None
        except Exception:  # whatever a backend of another kind answers
            continue
        if store is not None:
            return cast("Store", store)
    return None


def meet_in_group(group: dist.ProcessGroup, prefix: str) -> Meeting:
    """The meeting of a process group; the calling process must be a member."""
    if not isinstance(group, dist.ProcessGroup):
        raise refuse("group", type(group).__name__, "a torch.distributed.ProcessGroup")
    rank, num_ranks = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise refuse("group", "a group that this process is not in", "a group that it is in")
    store = group_store(group)
    if store is None:
        return CollectiveMeeting(group, rank, num_ranks)
    return StoreMeeting(store, rank, num_ranks, prefix)
