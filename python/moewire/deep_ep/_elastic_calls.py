"""Dispatch and combine of ``ElasticBuffer``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch

from .._base import check
from .._base.opaque import opaque_methods
from ..errors import ClosedError
from ..event import EventOverlap
from ._ep_handle import EPHandle, Form, checked
from ._events import EventHandle, check_counts, ended
from ._reduced import added_up
from ._routed import check_selections
from ._tokens import Bias, Rows, Tokens, biases_of, padded, tokens_of

if TYPE_CHECKING:
    from .. import buffer as core
    from .._base.place import Place
    from .._ep.routed import Scattered
    from .._ep.routing import Routing
    from ._shared_core import SharedCore

Dispatched: TypeAlias = tuple[
    Rows, torch.Tensor | None, torch.Tensor | None, EPHandle, EventOverlap
]

# Nothing here uses GPU cores; clients want an even number, and hand it back.
NUM_SMS = 20


class _Asked(NamedTuple):
    """The arguments of a dispatch that has no handle, checked."""

    topk_idx: torch.Tensor
    num_experts: int
    most_tokens: int  # M
    alignment: int
    exact: bool
    expand: bool


@opaque_methods
class ElasticCalls:
    """The calls that move rows. ``ElasticBuffer`` has the notation."""

    _core: SharedCore | None
    _place: Place
    num_ranks: int
    num_max_tokens_per_rank: int
    allow_multiple_reduction: bool
    timeout_us: int

    def dispatch(
        self,
        x: Rows,
        topk_idx: torch.Tensor | None = None,
        topk_weights: torch.Tensor | None = None,
        cumulative_local_expert_recv_stats: torch.Tensor | None = None,
        num_experts: int | None = None,
        num_max_tokens_per_rank: int | None = None,
        expert_alignment: int | None = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: EventHandle | None = None,
        previous_event_before_epilogue: EventHandle | None = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        handle: EPHandle | None = None,
        do_handle_copy: bool = True,
        do_cpu_sync: bool | None = None,
        do_expand: bool = False,
        do_zero_padding: bool = False,
        use_tma_aligned_col_major_sf: bool = False,
    ) -> Dispatched:
        """Sends rows to the ranks of their experts. Collective.

        Args:
            x: [T, H] of any dtype with rows of a multiple of 16 bytes; or that with scales [T, S]
                of 4 bytes each. Both with any strides.
            topk_idx: int64 [T, K], -1 selects nothing; an expert may come twice in a token. None
                with a handle.
            topk_weights: float32 [T, K].
            cumulative_local_expert_recv_stats: int32 [L], to which the rows of each local expert
                are added; not with a handle.
            num_experts: E; not needed with a handle.
            num_max_tokens_per_rank: M, at least T; None: the buffer's. It may differ between ranks:
                it sizes what is returned without ``do_cpu_sync``, and numbers sources.
            expert_alignment: of counts, and of expanded experts; None: 1.
            handle: of an earlier dispatch; its routing and its form are used again.
            do_handle_copy: keep a copy of topk_idx in the handle, not topk_idx itself.
            do_cpu_sync: return exactly the rows that came; None: True without a handle.
                False: R*M rows (expanded: as many as could come). Rows that did not come have
                ids -1 and weights 0.
            do_expand: one row per selection, by expert; with a handle it is the handle's.
            do_zero_padding: zeros between expanded experts.
            use_tma_aligned_col_major_sf: received scales have strides (1, rows rounded up to 4).
            previous_event: waited for first; needs ``allocate_on_comm_stream``, as upstream.
            previous_event_before_epilogue: waited for first.
            async_with_compute_stream: return an event.
            num_sms, num_qps, allocate_on_comm_stream: accepted and not used.

        Returns:
            ``(recv_x or (recv_x, scales), recv_topk_idx, recv_topk_weights, handle, event)``.
            Rows lie in order of source rank and token. recv_topk_idx is int64 [rows, K], None if
            expanded. recv_topk_weights is float32 [rows, K] with 0 where a selection is not here,
            expanded [rows]; None without topk_weights. The tensors are the caller's.

        Raises:
            InvalidArgument: an argument is wrong; the text names it.
            PeerMismatchError: the ranks disagree, and the text says about what.
            PeerLostError: a rank was lost; the text names it.
        """
        # Before rows and scales are copied.
        self._wait_for(previous_event, previous_event_before_epilogue, allocate_on_comm_stream)
        tokens = tokens_of(_contiguous(x), self._place)
        stats = cumulative_local_expert_recv_stats
        if handle is None:
            asked = self._asked(
                tokens, topk_idx, topk_weights, num_experts, num_max_tokens_per_rank,
                expert_alignment, do_cpu_sync, do_expand,
            )  # fmt: skip
            check_counts(stats, asked.num_experts // self.num_ranks, self._place)
        else:
            _check_cached(checked(handle), topk_idx, do_cpu_sync, do_expand, num_experts, stats)
        expanded = do_expand if handle is None else handle._form.expand
        if do_zero_padding and not expanded:
            raise check.refuse("do_zero_padding", True, "False for rows that are not expanded")
        # From here on ranks wait for one another: all arguments were checked.
        if handle is None:
            handle = self._route(asked, do_handle_copy, num_sms)
        came = self._scatter(handle, tokens, topk_weights, do_zero_padding)
        if stats is not None:
            counts = handle._routing.counts
            stats.add_(torch.tensor(counts, dtype=torch.int32, device=stats.device))
        scales = came.extra
        if scales is not None and use_tma_aligned_col_major_sf:
            scales = _col_major(scales)
        return (
            tokens.with_rows(came.rows, scales),
            self._ids(handle),
            came.weights,
            handle,
            ended(async_with_compute_stream),
        )

    def combine(
        self,
        x: torch.Tensor,
        handle: EPHandle,
        topk_weights: torch.Tensor | None = None,
        bias: Bias = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: EventHandle | None = None,
        previous_event_before_epilogue: EventHandle | None = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None, EventOverlap]:
        """Brings rows back to their tokens and adds them up. Collective.

        ``out[t]`` = the biases + the rows of t in order of rank, in float32, rounded once to bf16.
        Expanded rows of one token on one rank are added there first, in order of k, and rounded.

        Args:
            x: bf16 [rows, H], with any strides, as dispatched with this handle; rows beyond the
                received ones do not count.
            handle: of a dispatch.
            topk_weights: float32, as dispatched: [rows, K], or [rows] if expanded.
            bias: None, bf16 [T, H], or two of them.
            previous_event, previous_event_before_epilogue, async_with_compute_stream,
                allocate_on_comm_stream, num_sms, num_qps: as for ``dispatch``.

        Returns:
            ``(combined_x, combined_topk_weights, event)``: bf16 [T, H]; float32 [T, K], each from
            the rank of its selection, 0 where there is none, or None without topk_weights.

        Raises:
            InvalidArgument: an argument is wrong; the text names it.
            PeerMismatchError: the ranks disagree, and the text says about what.
            PeerLostError: a rank was lost; the text names it.
        """
        form, expanded = checked(handle)._form, handle._form.expand
        self._wait_for(previous_event, previous_event_before_epilogue, allocate_on_comm_stream)
        _check_rows("x", x, form)
        x = x[: form.num_came].contiguous()
        if topk_weights is not None:
            _check_rows("topk_weights", topk_weights, form)
            topk_weights = topk_weights[: form.num_came].contiguous()
        biases = biases_of(bias)
        if expanded and not self.allow_multiple_reduction:
            if topk_weights is not None:
                raise check.refuse(
                    "topk_weights", "a tensor", "None with allow_multiple_reduction=False"
                )
            x, expanded = added_up(x, handle._routing, form.alignment), False
            biases = tuple(one.float() for one in biases)
        out, weights = self._shared().gather(
            handle._routing,
            x,
            topk_weights=topk_weights,
            owners_only=True,
            bias=biases,
            expanded=expanded,
            expert_alignment=form.alignment if expanded else 1,
            timeout_us=self.timeout_us,
        )
        return out, weights, ended(async_with_compute_stream)

    def _asked(
        self,
        tokens: Tokens,
        topk_idx: torch.Tensor | None,
        topk_weights: torch.Tensor | None,
        num_experts: int | None,
        num_max_tokens_per_rank: int | None,
        expert_alignment: int | None,
        do_cpu_sync: bool | None,
        do_expand: bool,
    ) -> _Asked:
        """Checks the arguments of a dispatch that has no handle."""
        if topk_idx is None:
            raise check.refuse("topk_idx", "None", "a tensor without a handle")
        if num_experts is None:
            raise check.refuse("num_experts", "None", "a number without a handle")
        most = num_max_tokens_per_rank
        most = self.num_max_tokens_per_rank if most is None else most
        num = len(tokens.x)
        if num > most:
            raise check.refuse("num_max_tokens_per_rank", most, f"at least the {num} tokens of x")
        check_selections(num, topk_idx, topk_weights, self._place)
        return _Asked(
            topk_idx,
            check.experts(num_experts, self.num_ranks),
            most,
            check.limited("expert_alignment", 1 if expert_alignment is None else expert_alignment),
            do_cpu_sync is None or bool(do_cpu_sync),
            bool(do_expand),
        )

    def _route(self, asked: _Asked, do_handle_copy: bool, num_sms: int) -> EPHandle:
        """Makes the routing and the handle of a dispatch."""
        routing = self._shared().make_routing(
            asked.topk_idx, asked.num_experts, timeout_us=self.timeout_us
        )
        kept = asked.topk_idx.clone() if do_handle_copy else asked.topk_idx
        form = self._form_of(asked, routing)
        return EPHandle(routing, form, kept, asked.most_tokens, num_sms or NUM_SMS, self._place)

    def _form_of(self, asked: _Asked, routing: Routing) -> Form:
        expand, alignment = asked.expand, asked.alignment
        came = routing.num_expanded_rows(alignment) if expand else routing.num_rows
        worst = self.num_ranks * asked.most_tokens
        if expand:
            local = routing.num_local_experts
            worst = worst * min(routing.num_topk, local) + (alignment - 1) * local
            worst = -(-worst // alignment) * alignment
        # A rank with a larger M may have sent more than this rank's worst case.
        rows = came if asked.exact else max(came, worst)
        return Form(expand, alignment, came, rows, asked.exact)

    def _scatter(
        self,
        handle: EPHandle,
        tokens: Tokens,
        topk_weights: torch.Tensor | None,
        do_zero_padding: bool,
    ) -> Scattered:
        """Rows, weights and scales in as many rows as the handle says."""
        form = handle._form
        out = self._place.empty((form.num_rows, tokens.x.shape[1]), tokens.x.dtype)
        came = self._shared().scatter(
            handle._routing,
            tokens.x,
            topk_weights=topk_weights,
            extra=tokens.scales,
            out=out,
            expanded=form.expand,
            expert_alignment=form.alignment if form.expand else 1,
            zero_gaps=do_zero_padding,
            timeout_us=self.timeout_us,
        )

        def whole(rows: torch.Tensor | None) -> torch.Tensor | None:
            return None if rows is None else padded(rows, form.num_rows, self._place, 0)

        return came._replace(rows=out, weights=whole(came.weights), extra=whole(came.extra))

    def _ids(self, handle: EPHandle) -> torch.Tensor | None:
        if handle._form.expand:
            return None
        ids = handle._routing.recv_topk_idx()
        return padded(ids, handle._form.num_rows, self._place, -1)

    def _wait_for(
        self, event: EventHandle | None, before_epilogue: EventHandle | None, on_comm_stream: bool
    ) -> None:
        if event is not None and not on_comm_stream:
            raise check.refuse(
                "allocate_on_comm_stream", on_comm_stream, "True with a previous_event"
            )
        for one in (event, before_epilogue):
            if one is not None:
                one.current_stream_wait()

    def _shared(self) -> core.Buffer:
        if self._core is None:
            raise ClosedError("buffer was destroyed")
        return self._core.buffer


def _contiguous(x: Rows) -> Rows:
    """Clients pass gradients with any strides."""
    if isinstance(x, torch.Tensor):
        return x.contiguous()
    return (x[0].contiguous(), *x[1:]) if isinstance(x, tuple) and len(x) == 2 else x


def _check_rows(name: str, given: torch.Tensor, form: Form) -> None:
    """As many rows as the dispatch has; those that did not come may be left out."""
    num = len(given) if isinstance(given, torch.Tensor) and given.dim() else -1
    if not form.num_came <= num <= form.num_rows:
        allowed = f"those of the handle's dispatch, {form.num_came} to {form.num_rows}"
        raise check.refuse(name, f"{max(num, 0)} rows", allowed)


def _col_major(scales: torch.Tensor) -> torch.Tensor:
    """The same values with strides (1, rows rounded up to 4), as grouped GEMMs read them."""
    rows, width = scales.shape
    out = scales.new_zeros((width, -(-rows // 4) * 4))
    out[:, :rows] = scales.T
    return out.T[:rows]


def _check_cached(
    handle: EPHandle,
    topk_idx: object,
    do_cpu_sync: bool | None,
    do_expand: bool,
    num_experts: int | None,
    stats: object,
) -> None:
    """Refuses what a dispatch by a handle does not take."""
    if topk_idx is not None:
        raise check.refuse("topk_idx", "a tensor", "None with a handle")
    if do_cpu_sync:
        raise check.refuse("do_cpu_sync", True, "False or None with a handle")
    if do_expand and not handle._form.expand:
        raise check.refuse("do_expand", True, "False with the handle of a dispatch without it")
    if num_experts not in (None, handle._routing.num_experts):
        raise check.refuse(
            "num_experts", num_experts, f"the handle's {handle._routing.num_experts}"
        )
    if stats is not None:
        name = "cumulative_local_expert_recv_stats"
        raise check.refuse(name, "a tensor", "None with a handle")
