"""What a dispatch of ``ElasticBuffer`` returns for its combines and for later dispatches."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch

from .._base import check
from .._base.place import Place

if TYPE_CHECKING:
    from .._ep.routing import Routing


class Form(NamedTuple):
    """How the rows of a dispatch lie, which its handle decides for all later calls."""

    expand: bool
    alignment: int
    num_came: int  # rows, expanded ones if they are
    num_rows: int  # of the tensors
    exact: bool  # that is what came, not the worst case


class EPHandle:
    """DeepEP's ``EPHandle``: where rows went. It may be used as often as the group's epoch lasts.

    Fields have upstream's names and meanings (docs/deep_ep.md). Callers may assign to them; nothing
    here reads them again. ``num_max_tokens_per_rank`` is the stride of ``recv_src_metadata``.
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
        self._routing, self._form, self._place = routing, form, place
        self.do_expand = form.expand
        self.num_experts = routing.num_experts
        self.expert_alignment = form.alignment
        self.num_sms = num_sms
        self.topk_idx = topk_idx
        self.num_recv_tokens = routing.num_rows
        self.num_expanded_tokens = form.num_rows if form.expand else 0
        self._rows_from = routing.rows_from
        self._source_tokens = routing.source_tokens()
        self.num_max_tokens_per_rank = num_max_tokens_per_rank
        if routing.num_rows:  # a rank with a larger M may have sent some
            longest = int(self._source_tokens.max()) + 1
            self.num_max_tokens_per_rank = max(num_max_tokens_per_rank, longest)
        self._count()
        # Upstream's own, which clients do not read.
        self.token_metadata_at_forward: torch.Tensor | None = None
        self.channel_linked_list: torch.Tensor | None = None
        self.cached_recv_src_metadata_before_sort: torch.Tensor | None = None

    def _count(self) -> None:
        counts, alignment = self._routing.counts, self._form.alignment
        aligned = [-(-n // alignment) * alignment for n in counts]
        self.num_recv_tokens_per_expert_list = aligned if self._form.exact else []
        ends, at = [], 0
        for true, padded in zip(counts, aligned, strict=True):
            ends.append(at + (true if self._form.expand else padded))
            at += padded
        self.psum_num_recv_tokens_per_expert = self._int32(ends)
        self.psum_num_recv_tokens_per_scaleup_rank = self._int32(self._rows_from[1:])
        self.num_unaligned_recv_tokens_per_expert = (
            self._int32(counts) if self._form.expand else None
        )

    def _int32(self, values: list[int]) -> torch.Tensor:
        out = self._place.empty((len(values),), torch.int32)
        return out.copy_(torch.tensor(values, dtype=torch.int32, device="cpu"))

    @cached_property
    def recv_src_metadata(self) -> torch.Tensor:
        """int32 [rows, K + 2]: source, a word of upstream's own, expanded rows."""
        routing, num = self._routing, self._routing.num_rows
        ranks = len(self._rows_from) - 1
        rows = num if self._form.exact else max(num, ranks * self.num_max_tokens_per_rank)
        out = self._place.empty((rows, routing.num_topk + 2), torch.int32).fill_(-1)
        for rank, (first, end) in enumerate(pairwise(self._rows_from)):
            out[first:end, 0] = rank * self.num_max_tokens_per_rank
        out[:num, 0] += self._source_tokens
        out[:num, 1] = 0
        if self._form.expand:
            out[:num, 2:] = routing.expanded_rows(self._form.alignment)
        return out

    @cached_property
    def dst_buffer_slot_idx(self) -> torch.Tensor:
        """int32 [T, K]: which of this rank's rows for a selection's rank a token is, or -1."""
        local = self._routing.num_local_experts
        owner = torch.where(self.topk_idx < 0, -1, self.topk_idx // local)
        out = torch.full_like(owner, -1, dtype=torch.int32)
        for rank in owner.unique().tolist():
            if rank >= 0:
                nth = ((owner == rank).any(1).cumsum(0) - 1).to(torch.int32)
                out = torch.where(owner == rank, nth[:, None], out)
        return out


def checked(handle: object) -> EPHandle:
    """The argument ``handle`` of a call."""
    if not isinstance(handle, EPHandle):
        raise check.refuse("handle", type(handle).__name__, "what ElasticBuffer.dispatch returned")
    return handle
