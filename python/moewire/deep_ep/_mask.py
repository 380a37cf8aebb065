"""DeepEP's rank mask over Moewire's ``active_ranks``, which has the opposite meaning."""

from __future__ import annotations

import torch

from .. import _check
from ..errors import PeerLostError


class Mask:
    """Which ranks are left out. The core reads and clears the tensor in place.

    Without ``enable_shrink`` it is nobody's to see or change, and a lost rank is an error.
    """

    def __init__(self, num_ranks: int, enabled: bool) -> None:
        # int32 [R]; 1: takes part.
        self.active_ranks = torch.ones(num_ranks, dtype=torch.int32)
        self._enabled = enabled

    def refuse_losses(self) -> None:
        """Raises ``PeerLostError`` if a result lacks a rank and no mask tells the client."""
        if not self._enabled and not self.active_ranks.all():
            lost = (self.active_ranks == 0).nonzero().view(-1).tolist()
            raise PeerLostError(f"peer lost: rank {lost} (and enable_shrink is False)")

    def set(self, rank: object, masked: object) -> None:
        """Leaves a rank out, or takes it in again."""
        active = self._required()
        active[_check.integer("rank_to_mask", rank, 0, len(active) - 1)] = not masked

    def write_to(self, mask_status: torch.Tensor) -> None:
        """Fills int32 [R]; 1 for ranks that are left out."""
        active = self._required()
        _check.tensor("mask_status", mask_status, torch.int32, (len(active),))
        torch.sub(1, active, out=mask_status)

    def clear(self) -> None:
        """Takes every rank in again."""
        self._required().fill_(1)

    def _required(self) -> torch.Tensor:
        if not self._enabled:
            raise _check.refuse("enable_shrink", "False at construction", "True to use the mask")
        return self.active_ranks
