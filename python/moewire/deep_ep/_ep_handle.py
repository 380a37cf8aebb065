"""What a dispatch of ``ElasticBuffer`` returns for its combines and for later dispatches."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import torch

from .._base.place import Place

if TYPE_CHECKING:
    from .._ep.routing import Routing


class Form(NamedTuple):
    """How the rows of a dispatch lie, which its handle decides for all later calls."""

    expand: bool
    alignment: int
    num_rows: int  # of the tensors
    exact: bool  # num_rows is what was received, not the worst case


class EPHandle:
    """DeepEP's ``EPHandle``: where rows went. It may be used as often as the group's epoch lasts.

    Fields have upstream's names and meanings (docs/deep_ep.md). Callers may assign to them; nothing
    here reads them again.
    """

    def __init__(
        self,
        routing: Routing,
        form: Form,
        topk_idx: torch.Tensor,
        num_max_tokens_per_rank: int,
        num_sms: int,
        place: Place,
    ) -> None:
        self._routing = routing
        self._form = form
        self.do_expand = form.expand
        self.num_experts = routing.num_experts
        self.expert_alignment = form.alignment
        self.num_max_tokens_per_rank = num_max_tokens_per_rank
        self.num_sms = num_sms
        self.topk_idx = topk_idx
        self.num_recv_tokens = routing.num_rows
        self.num_expanded_tokens = form.num_rows if form.expand else 0
        self._count(place)
        self.recv_src_metadata = self._sources(place)
        self.dst_buffer_slot_idx = _slots(topk_idx, routing.num_experts // _ranks(routing))
        # Upstream's own, which clients do not read.
        self.token_metadata_at_forward: torch.Tensor | None = None
        self.channel_linked_list: torch.Tensor | None = None
        self.cached_recv_src_metadata_before_sort: torch.Tensor | None = None

    def _count(self, place: Place) -> None:
        counts, alignment = self._routing.counts, self._form.alignment
        aligned = [_align(n, alignment) for n in counts]
        self.num_recv_tokens_per_expert_list = aligned if self._form.exact else []
        ends, at = [], 0
        for true, padded in zip(counts, aligned, strict=True):
            ends.append(at + (true if self._form.expand else padded))
            at += padded
        self.psum_num_recv_tokens_per_expert = _int32(ends, place)
        self.psum_num_recv_tokens_per_scaleup_rank = _int32(self._routing.rows_from[1:], place)
        self.num_unaligned_recv_tokens_per_expert = (
            _int32(counts, place) if self._form.expand else None
        )

    def _sources(self, place: Place) -> torch.Tensor:
        """int32 [rows, K + 2]: source, a word of upstream's own, expanded rows."""
        routing = self._routing
        num = routing.num_rows
        rows = num if self._form.exact else max(num, _ranks(routing) * self.num_max_tokens_per_rank)
        out = place.empty((rows, routing.num_topk + 2), torch.int32).fill_(-1)
        first = routing.rows_from
        per_rank = torch.tensor(
            [after - before for before, after in itertools.pairwise(first)],
            dtype=torch.int64,
            device=out.device,
        )
        ranks = torch.arange(per_rank.numel(), dtype=torch.int32, device=out.device)
        source = torch.repeat_interleave(ranks, per_rank) * self.num_max_tokens_per_rank
        out[:num, 0] = source + routing.source_tokens()
        out[:num, 1] = 0
        if self._form.expand:
            out[:num, 2:] = routing.expanded_rows(self._form.alignment)
        return out


def _ranks(routing: Routing) -> int:
    return len(routing.rows_from) - 1


def _align(number: int, alignment: int) -> int:
    return -(-number // alignment) * alignment


def _int32(values: list[int], place: Place) -> torch.Tensor:
    out = place.empty((len(values),), torch.int32)
    return out.copy_(torch.tensor(values, dtype=torch.int32, device="cpu"))


def _slots(topk_idx: torch.Tensor, num_local_experts: int) -> torch.Tensor:
    """int32 [T, K]: which of this rank's rows for a selection's rank a token is, or -1."""
    owner = torch.where(topk_idx < 0, -1, topk_idx // num_local_experts)
    out = torch.full_like(owner, -1, dtype=torch.int32)
    for rank in owner.unique().tolist():
        if rank >= 0:
            goes = (owner == rank).any(1)
            nth = (goes.cumsum(0) - 1).to(torch.int32)
            out = torch.where(owner == rank, nth[:, None], out)
    return out
