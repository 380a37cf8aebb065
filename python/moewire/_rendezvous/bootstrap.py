"""Where ranks meet: in a store if there is one, else by exchanging bytes.

A store needs no collective, has a deadline, and can tell which ranks did not come. Only a
group without a store uses collectives.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, cast

import torch
import torch.distributed as dist

from .._base.check import integer, limited, refuse
from .._native.runtime import MAX_METADATA_BYTES, Runtime
from ..errors import MoewireError, PeerLostError
from .by_store import StoreRendezvous
from .store import Store

_LENGTH = struct.Struct("<I")
_RECORD_BYTES = _LENGTH.size + MAX_METADATA_BYTES


class Rendezvous(Protocol):
    """How one rank meets the others."""

    rank: int
    num_ranks: int

    def construct(self, runtime: Runtime, members: frozenset[int], timeout_us: int) -> None:
        """Connects a new buffer with ``members``, or with the group that it joins."""

    def update(self, runtime: Runtime, members: frozenset[int], timeout_us: int) -> None:
        """Begins a new epoch with those of ``members`` that come."""


# The embedder's part of ``ExchangeRendezvous``: from this rank's bytes to every rank's.
Exchange: TypeAlias = Callable[[bytes], Sequence[bytes | None]]


class ExchangeRendezvous:
    """Meets by exchanging bytes, by any means. Empty or None: that rank is absent.

    A round is two exchanges: of metadata, and of whether each rank could connect.
    """

    def __init__(self, exchange: Exchange, rank: int, num_ranks: int) -> None:
        self.num_ranks = limited("world_size", num_ranks, "num_ranks")
        self.rank = integer("rank", rank, 0, self.num_ranks - 1)
        self._exchange = exchange

    def construct(self, runtime: Runtime, members: frozenset[int], timeout_us: int) -> None:
        """One round, with every rank that takes part in the exchange."""
        self._meet(runtime, timeout_us)

    def update(self, runtime: Runtime, members: frozenset[int], timeout_us: int) -> None:
        """One round; ``members`` is not used: the exchange says which ranks have come."""
        runtime.update()
        self._meet(runtime, timeout_us)

    def _meet(self, runtime: Runtime, timeout_us: int) -> None:
        failure: MoewireError | None = None
        everybody = [item or b"" for item in self._exchange(runtime.metadata())]
        try:
            # 0 is taken as a short time: here it is too late to refuse it.
            runtime.connect(everybody, timeout_us or 1)
        except MoewireError as error:
            failure = error
        votes = self._exchange(b"no" if failure else b"yes")
        if failure is not None:
            raise failure
        refused = [r for r, vote in enumerate(votes) if everybody[r] and vote != b"yes"]
        if refused:
            names = ", ".join(str(rank) for rank in refused)
            raise PeerLostError(f"rank {names} could not connect; try again")
        runtime.install()


def all_gather_bytes(group: dist.ProcessGroup) -> Exchange:
    """An exchange by one ``all_gather``, on the device that the group's backend needs.

    Its deadline is the group's own.
    """
    num_ranks = dist.get_world_size(group)

    def exchange(own: bytes) -> list[bytes | None]:
        device = collective_device(group)
        record = torch.frombuffer(bytearray(pack_record(own)), dtype=torch.uint8).to(device)
        records = [torch.empty_like(record) for _ in range(num_ranks)]
        dist.all_gather(records, record, group=group)
        return [unpack_record(bytes(item.cpu().tolist())) for item in records]

    return exchange


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
        except Exception:  # a backend of another kind may raise anything
            continue
        if store is not None:
            return cast("Store", store)
    return None


def group_rendezvous(group: dist.ProcessGroup, prefix: str) -> Rendezvous:
    """The rendezvous of a process group; the calling process must be a member."""
    if group == dist.GroupMember.NON_GROUP_MEMBER:  # what torch gives ranks outside it
        raise refuse("group", "a group that this rank is not in", "a group that it is in")
    if not isinstance(group, dist.ProcessGroup):
        raise refuse("group", type(group).__name__, "a torch.distributed.ProcessGroup")
    rank, num_ranks = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise refuse("group", "a group that this rank is not in", "a group that it is in")
    store = group_store(group)
    if store is None:
        return ExchangeRendezvous(all_gather_bytes(group), rank, num_ranks)
    return StoreRendezvous(store, rank, num_ranks, prefix)
