"""One layer's flat exchange: bf16 rows as they are, float32 rows packed into bf16 ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .. import _buffers
from . import _float32, _lost, _sizes

if TYPE_CHECKING:
    from ..._ep.flat_results import FlatHandle
    from ...buffer import Buffer


@dataclass
class Sent:
    """What a dispatch brought, and what its combine needs."""

    exchange: FlatExchange
    handle: FlatHandle
    buffer: Buffer
    x: torch.Tensor  # [N, H]
    topk_idx: torch.Tensor  # int64 [N, K], local; -1 for another rank's expert
    topk_weights: torch.Tensor  # float32 [N, K]; 0 there
    extra: tuple[torch.Tensor, ...]  # [N, ...]


class FlatExchange:
    """Cheap to make; all of a process share the Buffer behind it.

    Args:
        sizes: the shape that every rank agrees on.
        place: where the expert-parallel ranks meet, and the device of their tensors.
        watch: which ranks were lost, and when one is.
    """

    def __init__(
        self,
        sizes: _sizes.Sizes,
        place: _buffers.Place,
        watch: _lost.Watch,
    ) -> None:
        self.sizes = sizes
        self.place = place
        self.watch = watch
        self.fp32 = sizes.dtype == torch.float32

    def dispatch(
        self,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        extra: tuple[torch.Tensor, ...],
    ) -> Sent:
        """[T, H], [T, K], [T, K], [T, ...] of this rank to the ranks of their experts."""
        sizes = self.sizes
        ids, weights = topk_ids.long().contiguous(), topk_weights.float().contiguous()
        extra = tuple(one.contiguous() for one in extra)
        rows = x.contiguous()
        if self.fp32:
            rows, ids, weights, extra = self._per_rank(rows, ids, weights, extra)
        key = self._key(extra)
        buffer = _buffers.buffer_for(key)
        found = buffer.dispatch_flat(
            rows,
            ids,
            weights,
            key.max_tokens,
            sizes.num_experts,
            extra=extra,
            active_ranks=self.watch.active_ranks,
            timeout_us=self.watch.timeout_us,
        )
        x, idx, weights_back = found.recv_x, found.recv_topk_idx, found.recv_topk_weights
        assert isinstance(x, torch.Tensor) and idx is not None and weights_back is not None
        if self.fp32:
            x = _float32.incoming(x, sizes.hidden)
        return Sent(self, found.handle, buffer, x, idx, weights_back, found.recv_extra)

    def combine(self, sent: Sent, results: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        """[N, H], weighted -> [T, H], summed over the ranks in their order."""
        active, limit = self.watch.active_ranks, self.watch.timeout_us
        if not self.fp32:
            rows = results.contiguous()
            total, _, _ = sent.buffer.combine_flat(
                rows, sent.handle, active_ranks=active, timeout_us=limit, out=out
            )
            return total
        parts = sent.buffer.get_next_combine_buffer(sent.handle, timeout_us=limit)
        _float32.split(results, parts)
        found, _, _ = sent.buffer.combine_flat(
            parts, sent.handle, active_ranks=active, timeout_us=limit, zero_copy=True
        )
        total = _summed(_float32.merge(found), self.sizes.num_ranks)
        return total if out is None else out.copy_(total)

    def _key(self, extra: tuple[torch.Tensor, ...]) -> _buffers.Key:
        sizes = self.sizes
        hidden, tokens = sizes.hidden, sizes.max_tokens
        if self.fp32:
            hidden, tokens = _float32.width(hidden), tokens * sizes.num_ranks
        extra_bytes = tuple(_row_bytes(one) for one in extra)
        flat = (sizes.num_topk, *extra_bytes)
        return _buffers.Key(
            self.place,
            hidden,
            sizes.num_experts,
            torch.bfloat16,
            tokens,
            flat=flat,
        )

    def _per_rank(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        extra: tuple[torch.Tensor, ...],
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, tuple[torch.Tensor, ...]]:
        """Each token R times, copy r with the selections of rank r's experts only.

        So the result of each rank comes back by itself; copies without a selection go nowhere.
        """
        ranks = self.sizes.num_ranks
        owner = ids // (self.sizes.num_experts // ranks)
        every = torch.arange(ranks, dtype=torch.int64, device=ids.device)
        shares = every.view(1, ranks, 1) == owner.unsqueeze(1)
        expanded = torch.where(shares, ids.unsqueeze(1), -1).view(-1, ids.shape[1])
        again = tuple(one.repeat_interleave(ranks, dim=0) for one in extra)
        return (
            _float32.outgoing(x, ranks),
            expanded,
            weights.repeat_interleave(ranks, dim=0),
            again,
        )


def _row_bytes(tensor: torch.Tensor) -> int:
    return int(tensor.element_size() * tensor.shape[1:].numel())


def _summed(shares: torch.Tensor, num_ranks: int) -> torch.Tensor:
    """float32 [T*R, H] -> [T, H], in order of rank."""
    shares = shares.unflatten(0, (len(shares) // num_ranks, num_ranks))
    total = shares[:, 0].clone()
    for rank in range(1, num_ranks):
        total += shares[:, rank]
    return total
