"""DeepEP's rank mask over Moewire's ``active_ranks``, which has the opposite meaning."""

from __future__ import annotations

import torch

from .. import _check


class Mask:
    """Which ranks are left out. The core reads and clears the tensor in place.

    Without ``enable_shrink`` there is no mask: a lost rank is an error then.
    """

    def __init__(self, num_ranks: int, enabled: bool) -> None:
        # int32 [R]; 1: takes part.
        self.active_ranks = torch.ones(num_ranks, dtype=torch.int32) if enabled else None

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
        if self.active_ranks is None:
            raise _check.refuse("enable_shrink", "False at construction", "True to use the mask")
        return self.active_ranks
