"""The handle of the normal mode: a routing, which outlives every operation."""

from __future__ import annotations

from typing import NamedTuple

import torch

from .._base import check
from .._ep.routing import Routing


class DispatchHandle(NamedTuple):
    """What a dispatch leaves for any number of combines and cached dispatches, in any order.

    It holds ordinary memory and nothing of the buffer. A copy of it is as good.
    """

    # int32 [R, R]: [i][j] rows of ranks up to i went to rank j. Only column ``rank`` is known
    # here: what other ranks received takes an exchange. -1 stands in their columns.
    rank_prefix_matrix: torch.Tensor
    # int32 [R]: that column. Upstream's handle between hosts has it at this place from the end.
    recv_gbl_rank_prefix_sum: torch.Tensor
    routing: Routing
    num_rows: int  # of the dispatch's results: N, or num_worst_tokens
    rank: int

    @classmethod
    def of(cls, routing: Routing, rank: int, num_worst_tokens: int) -> DispatchHandle:
        """The handle of a routing; 0 worst tokens: results have N rows."""
        ends = torch.tensor(routing.rows_from[1:], dtype=torch.int32, device="cpu")
        matrix = torch.full((len(ends), len(ends)), -1, dtype=torch.int32, device="cpu")
        matrix[:, rank] = ends
        return cls(matrix, ends, routing, num_worst_tokens or routing.num_rows, rank)


def checked(handle: object) -> DispatchHandle:
    """A handle, or a tuple of its items, which code that walks through tuples makes of one."""
    is_one = isinstance(handle, tuple) and len(handle) == len(DispatchHandle._fields)
    if not (is_one and isinstance(handle[2], Routing)):  # type: ignore[index]
        raise check.refuse("handle", type(handle).__name__, "what Buffer.dispatch returned")
    return DispatchHandle(*handle)  # type: ignore[misc]
