"""Which rows a dispatch received, in an order that does not depend on when they came."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from .._ep.flat_results import FlatReceived
    from ..handle import Handle

_COUNT_MASK = 0xFFFFFFFF  # the low half of a word of layout_range


class ReceivedRows(NamedTuple):
    """The N rows of one dispatch, ordered by local expert, source rank and token.

    Only rows of sources that count: a lost rank's rows, which ``recv_count`` may include, have
    undefined content and are left out.
    """

    positions: torch.Tensor  # int64 [N], in recv_x seen as [L * R * M, H]
    # int64 [N], ascending: (expert * R + source) * M + token. No two rows have the same key,
    # because a token sends one row to an expert.
    keys: torch.Tensor
    counts: list[int]  # by local expert; of a flat dispatch: of all

    @classmethod
    def of(cls, handle: Handle) -> ReceivedRows:
        """What ``handle`` received; its receive phase must be over. On CUDA the host waits."""
        src_info, layout, num_max_tokens, _, _ = handle
        num_ranks = layout.shape[1]
        rows_of = layout & _COUNT_MASK  # [L, R]
        numbers: list[int] = rows_of.sum(1).tolist()
        counts, total = rows_of.flatten(), sum(numbers)
        # expert * R + source, of each row
        blocks = torch.repeat_interleave(counts, output_size=total)
        ends = counts.cumsum(0)
        offsets = _numbers(total, layout.device) - (ends - counts)[blocks]
        begins = (layout >> 32).flatten()[blocks]
        positions = blocks // num_ranks * (num_ranks * num_max_tokens) + begins + offsets
        tokens = src_info.flatten()[positions]
        keys, order = (blocks * num_max_tokens + tokens).sort()
        return cls(positions[order], keys, numbers)

    @classmethod
    def of_flat(cls, received: FlatReceived, num_max_tokens: int) -> ReceivedRows:
        """The same for a flat dispatch. Its rows belong to no expert: ``expert`` is 0.

        On CUDA the host waits for their number.
        """
        layout = received.handle.layout_range  # [R]
        counts = layout & _COUNT_MASK
        sources = torch.repeat_interleave(counts)
        ends = counts.cumsum(0)
        offsets = _numbers(sources.numel(), layout.device) - (ends - counts)[sources]
        positions = (layout >> 32)[sources] + offsets
        keys = sources * num_max_tokens + received.src_info[positions]
        return cls(positions, keys, [positions.numel()])

    def find(self, keys: torch.Tensor) -> torch.Tensor:
        """Where rows with these keys are, int64 [n]: indices into ``positions``, -1 for none."""
        if torch.equal(keys, self.keys):
            return _numbers(keys.numel(), keys.device)
        if not self.keys.numel():
            return torch.full_like(keys, -1)
        found = torch.searchsorted(self.keys, keys).clamp_(max=self.keys.numel() - 1)
        return torch.where(self.keys[found] == keys, found, -1)

    def take(self, rows: torch.Tensor) -> torch.Tensor:
        """A copy [N, ...] of the received rows, out of recv_x [L, R * M, H] seen as [n, H]."""
        return rows.index_select(0, self.positions)


def _numbers(count: int, device: torch.device) -> torch.Tensor:
    """int64 [count]: 0, 1, 2, ..."""
    return torch.arange(count, dtype=torch.int64, device=device)
