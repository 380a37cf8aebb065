"""The Buffers that MoE layers share, and where their ranks meet."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch.distributed as dist

from .. import _abi as abi
from .. import autograd
from ..buffer import STORE_PREFIX, Buffer
from ..errors import MoewireError

if TYPE_CHECKING:
    import torch


class Place(Protocol):
    """Ranks that exchange tokens; equal and hashable if they are the same."""

    @property
    def num_ranks(self) -> int: ...

    @property
    def device(self) -> str: ...

    def meet(self, key: Key, num_bytes: int) -> Buffer:
        """A new Buffer for ``key``; collective."""


@dataclass(frozen=True)
class InGroup:
    """The ranks of a process group, and the device of their tensors."""

    group: dist.ProcessGroup
    device: str = "cpu"

    @property
    def num_ranks(self) -> int:
        return int(dist.get_world_size(self.group))

    def meet(self, key: Key, num_bytes: int) -> Buffer:
        return Buffer(self.group, num_bytes, device=self.device)


@dataclass(frozen=True)
class InStore:
    """Ranks that need no process group, and so may be lost and come back."""

    store: dist.Store
    rank: int
    num_ranks: int
    device: str = "cpu"

    def meet(self, key: Key, num_bytes: int) -> Buffer:
        # A fresh process makes only the Buffers in use; the others may have made more. So each
        # Buffer has a prefix of its own: else the first one here would meet the others' first.
        kind = self.device.split(":")[0]
        sizes = [key.hidden, key.num_experts, key.max_tokens, *(key.flat or ())]
        prefix = "/".join([STORE_PREFIX, kind, str(key.dtype), *map(str, sizes)])
        return Buffer.from_store(
            self.store, self.rank, self.num_ranks, num_bytes, prefix=prefix, device=self.device
        )


Ranks = InGroup | InStore


def on(ranks: Ranks, device: str) -> Ranks:
    """The same ranks with their tensors on a device."""
    return ranks if ranks.device == device else replace(ranks, device=device)


class Key(NamedTuple):
    """What the layers that share one Buffer have in common."""

    place: Place
    hidden: int
    num_experts: int
    dtype: torch.dtype
    max_tokens: int
    # For flat operations: selections per token, then bytes per token of each extra tensor.
    flat: tuple[int, ...] | None = None


_lock = threading.Lock()
_buffers: dict[Key, Buffer] = {}


def buffer_for(key: Key) -> Buffer:
    """The process's one Buffer for ``key``; collective over its ranks when it is new.

    Any thread may call it. A thread that needs a new Buffer blocks the other threads until it is
    made. So threads that need different Buffers at the same time must ask for them in the same
    order on every rank.
    """
    found = _buffers.get(key)  # the common case, without the lock
    if found is not None:
        return found
    with _lock:
        found = _buffers.get(key)
        if found is None:
            found = _buffers[key] = key.place.meet(key, _num_bytes(key))
        return found


def _num_bytes(key: Key) -> int:
    """For packed rows: room for a backward with any number of selections. Address space."""
    ranks = key.place.num_ranks
    if key.flat is None:
        return autograd.get_ep_buffer_size_hint(
            key.max_tokens, key.hidden, ranks, key.num_experts, abi.MW_MAX_TOPK
        )
    num_topk, *extra = key.flat
    return Buffer.get_flat_buffer_size_hint(
        key.max_tokens, key.hidden, ranks, num_topk, extra_row_bytes=extra
    )


def find(key: Key) -> Buffer | None:
    """The Buffer for ``key``, if it was made here and is not closed."""
    return _buffers.get(key)


def open_buffers() -> list[Buffer]:
    """Every Buffer made here, in the order of making."""
    return list(_buffers.values())


def close_buffers(place: Place | None = None) -> None:
    """Closes every Buffer made here, or those of a place; a later forward makes new ones.

    Buffers that cannot be closed yet (``Buffer.close``) stay here, closed to callers. The first
    error is raised when all have been tried: call it again.
    """
    with _lock:
        keys = [key for key in _buffers if place is None or key.place == place]
        closing = [(key, _buffers.pop(key)) for key in reversed(keys)]
    errors: list[MoewireError] = []
    for key, buffer in closing:
        try:
            buffer.close()
        except MoewireError as error:
            errors.append(error)
            with _lock:
                _buffers.setdefault(key, buffer)
    if errors:
        raise errors[0]
