"""Ranks that died: vLLM's step must not go on without their experts."""

from __future__ import annotations

import torch

from ...errors import PeerLostError


class Watch:
    """The ``active_ranks`` of one rank's exchanges; lost ranks are cleared in it, in place."""

    def __init__(self, num_ranks: int) -> None:
        self.active_ranks = torch.ones(num_ranks, dtype=torch.int32)

    def refuse(self) -> None:
        """Raises ``PeerLostError`` if a rank was lost.

        The exchange itself would go on, and leave out the lost experts' share of every token.
        vLLM has no way to say so to those who wait for the text, so its step fails instead.
        """
        lost = [rank for rank, active in enumerate(self.active_ranks.tolist()) if not active]
        if lost:
            raise PeerLostError(
                f"expert-parallel ranks {lost} were lost: their experts' share of the result "
                "is missing, and vLLM cannot answer without it"
            )
