"""DeepEP's rank mask over Moewire's ``active_ranks``, which has the opposite meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .._base import check
from .._base.place import HOST, Place
from ..errors import PeerLostError

if TYPE_CHECKING:
    from ..buffer import Buffer


class Mask:
    """Which ranks are left out. The core reads and clears the tensor in place.

    Without ``enable_shrink`` a client neither sees nor changes it, and a lost rank is an error.
    """

    def __init__(self, num_ranks: int, enabled: bool, place: Place = HOST) -> None:
        ones = torch.ones(num_ranks, dtype=torch.int32, device="cpu")
        # int32 [R]; 1: takes part. A copy from the host is there when the call returns.
        self.active_ranks = place.empty((num_ranks,), torch.int32).copy_(ones)
        self._enabled = enabled
        self._place = place

    def refuse_losses(self) -> None:
        """Raises ``PeerLostError`` if a result lacks a rank and no mask tells the client."""
        if self._enabled:
            return
        lost = self._lost()
        if lost:
            raise PeerLostError(f"peer lost: rank {lost} (and enable_shrink is False)")

    def look(self) -> None:
        """On CUDA, lets the current stream tell the host which losses it has found so far."""

    def _lost(self) -> list[int]:
        return _zeros(self.active_ranks)

    def set(self, rank: object, masked: object) -> None:
        """Leaves a rank out, or takes it in again."""
        active = self._required()
        active[check.integer("rank_to_mask", rank, 0, len(active) - 1)] = not masked

    def write_to(self, mask_status: torch.Tensor) -> None:
        """Fills int32 [R]; 1 for ranks that are left out."""
        active = self._required()
        check.tensor("mask_status", mask_status, torch.int32, (len(active),), self._place)
        torch.sub(1, active, out=mask_status)

    def clear(self) -> None:
        """Takes every rank in again."""
        self._required().fill_(1)

    def _required(self) -> torch.Tensor:
        if not self._enabled:
            raise check.refuse("enable_shrink", "False at construction", "True to use the mask")
        return self.active_ranks


class DeviceMask(Mask):
    """On CUDA: a copy on the host tells of losses, as far as the device has come.

    So an error comes with a later call: by then, a result that lacks a rank was given out.
    """

    def __init__(self, num_ranks: int, enabled: bool, place: Place) -> None:
        super().__init__(num_ranks, enabled, place)
        # Entries go from 1 to 0 and stay: whenever it is read, it is right so far.
        self._seen = place.pinned((num_ranks,), torch.int32).fill_(1)

    def look(self) -> None:
        if not self._enabled:
            self._seen.copy_(self.active_ranks, non_blocking=True)

    def _lost(self) -> list[int]:
        return _zeros(self._seen)


def _zeros(active: torch.Tensor) -> list[int]:
    found: list[int] = [] if active.all() else (active == 0).nonzero().view(-1).tolist()
    return found


def mask_of(buffer: Buffer, enabled: bool) -> Mask:
    """A buffer's, on its device."""
    engine, num_ranks = buffer.runtime, buffer.group_size
    if engine.drives:
        return Mask(num_ranks, enabled)
    return DeviceMask(num_ranks, enabled, engine.place)
