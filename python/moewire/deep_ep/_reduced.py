"""Sums of expanded rows that are not rounded before they travel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .._ep.routing import Routing


def added_up(x: torch.Tensor, routing: Routing, alignment: int) -> torch.Tensor:
    """float32 [N, H]: each token's expanded rows on this rank, added up in order of k.

    Args:
        x: [expanded rows, H].
        routing: that the rows were expanded by.
        alignment: of its experts.

    Returns:
        A tensor of its own.
    """
    places = routing.expanded_rows(alignment)
    out = torch.zeros((places.shape[0], x.shape[1]), dtype=torch.float32, device=x.device)
    for k in range(places.shape[1]):
        here = places[:, k] >= 0
        out[here] += x[places[here, k].long()].float()
    return out
