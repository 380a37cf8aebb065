"""Dispatch and combine with gradients, for training.

    num_bytes = autograd.get_ep_buffer_size_hint(M, H, R, E, K)
    buffer = moewire.Buffer(group, num_bytes)

    rows, routing = autograd.dispatch(buffer, x, topk_idx, topk_weights, None, M, E, timeout_us)
    y = experts(rows, routing.counts)  # rows [N, H], one local expert after another
    out = autograd.combine(y, routing)  # [T, H]

Notation as in ``Buffer``. Forward results have the bits of ``Buffer.dispatch`` and ``combine``.
The backward is one dispatch and one combine, of rows that are ``num_values(K)`` longer:

- The gradient of ``out`` goes to the experts, in bf16, with the token's ids and weights. There
  the gradient of a row of ``y`` is weight * gradient (a float32 product, rounded to bf16). The
  gradient of the weight is the dot product of the row of ``y`` with the gradient, in float32.
- Gradients of ``rows`` come back and are summed with weight 1: the gradient of ``x``, a float32
  sum in order of k, rounded once. Those of the weights come with them as exact float32.

Gradients are for ``x``, ``topk_weights``, and the parameters of the experts. Second derivatives
are not supported. Autograd keeps no memory of the workspace, and no operation stays open between
forward and backward: the backward sends again, by the routing that it saved. An exception in the
experts' backward ends the operation that is open there; ranks that waited for it get
``NotCombinedError``.

``dispatch_flat`` and ``combine_flat`` are the same for the flat form, where the experts' rank
weights and sums. There the gradients of the weights are computed at the experts, and come back
exactly.

``scatter`` and ``gather`` are the same over a ``moewire.Routing``, of which a graph may hold any
number: each is the backward of the other, and a backward moves the rows of the forward, no more.

All ranks must build the same graph: the same calls in the same order, and a backward through the
same ``out``. A rank without tokens, without rows, or with an ``x`` that needs no gradient takes
part like any other rank: its results require gradients, too. It must call ``backward`` as the
others do, for example on ``out.sum()``. ``torch.no_grad`` must be on everywhere or nowhere.

With a buffer on CUDA all tensors are on its device, and each dispatch and backward waits on the
host for the number of rows (docs/training.md).

A lost rank contributes nothing. A rank that is lost between forward and backward contributes no
gradient and gets none; ``active_ranks`` says so. Throw away a step in which ranks were lost.
docs/training.md has the details.
"""

from __future__ import annotations

from .._base import needs_torch  # noqa: F401, isort: skip

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from .._base import check
from .._base.opaque import opaque
from ..buffer import Buffer
from ..handle import Handle
from . import _piggyback
from ._backward import (
    Call,
    Returning,
    check_inputs,
    new_anchor,
    piggyback_hint,
    place_of,
    refuse_capture,
)
from ._flat import FlatRouting, combine_flat, dispatch_flat, get_flat_buffer_size_hint
from ._routed import gather, scatter
from ._rows import ReceivedRows

__all__ = [
    "FlatRouting",
    "Routing",
    "combine",
    "combine_flat",
    "dispatch",
    "dispatch_flat",
    "gather",
    "get_ep_buffer_size_hint",
    "get_flat_buffer_size_hint",
    "scatter",
]


def get_ep_buffer_size_hint(
    num_max_dispatch_tokens_per_rank: int,
    hidden: int,
    num_ranks: int,
    num_experts: int,
    num_topk: int,
    *,
    num_slots: int = 2,
) -> int:
    """Bytes to construct a ``Buffer`` with for training; its backward sends longer rows.

    Args:
        num_max_dispatch_tokens_per_rank: M.
        hidden: H.
        num_ranks: R.
        num_experts: E.
        num_topk: K.
        num_slots: as for ``Buffer``.

    Returns:
        The size for ``num_ep_buffer_bytes``.

    Raises:
        InvalidArgument: a number is out of its bounds.
    """
    width, _ = piggyback_hint(hidden, num_topk)
    return Buffer.get_ep_buffer_size_hint(
        num_max_dispatch_tokens_per_rank,
        width,
        num_ranks,
        num_experts,
        num_slots=num_slots,
    )


class _Call(Call[Handle]):
    """The packed operations of one layer's call."""

    def dispatch(
        self, rows: torch.Tensor, topk_idx: torch.Tensor, more: bool = False
    ) -> tuple[torch.Tensor, Handle]:
        """recv_x [L, R*M, H] in the workspace as [L*R*M, H], and its handle."""
        recv_x, _, handle, _, _ = self.buffer.dispatch(
            rows,
            topk_idx,
            self.active_ranks,
            self.num_max_tokens,
            self.num_experts,
            self.timeout_us,
            use_fp8=False,
            more=more,
        )
        assert isinstance(recv_x, torch.Tensor)  # a pair only with fp8
        return recv_x.flatten(0, 1), handle

    def combine(
        self,
        rows: torch.Tensor,
        positions: torch.Tensor,
        topk_idx: torch.Tensor,
        topk_weights: torch.Tensor,
        handle: Handle,
    ) -> torch.Tensor:
        """Puts rows [N, H] at their positions, brings them back, releases the handle."""
        with handle:
            place = self.buffer.get_next_combine_buffer(handle, timeout_us=self.timeout_us)
            place.flatten(0, 1).index_copy_(0, positions, rows)
            out, _, _ = self.buffer.combine(
                place,
                topk_idx,
                topk_weights,
                self.active_ranks,
                self.timeout_us,
                handle,
                zero_copy=True,
            )
        return out

    def send(self, rows: torch.Tensor, topk_idx: torch.Tensor) -> Returning[Handle]:
        """The first half of a backward."""
        refuse_capture(self.buffer)
        recv_x, handle = self.dispatch(rows, topk_idx)
        return Returning(recv_x, handle, ReceivedRows.of(handle))


class Routing:
    """What ``dispatch`` did, for the experts and for ``combine``. Used once.

    - ``counts``: list of L ints, the rows of each local expert; ``rows`` has them in this order.
    - ``peers_have_more``: whether any rank dispatched with ``more=True``.
    """

    counts: list[int]
    peers_have_more: bool

    def __init__(self, call: _Call, topk_idx: torch.Tensor, topk_weights: torch.Tensor) -> None:
        self._call = call
        self._topk_idx = topk_idx
        self._topk_weights = topk_weights
        self._handle: Handle | None = None
        # float32 [N, K], zeros: how autograd gets from combine to dispatch. Its gradient is the
        # weights' gradient, at the row that it belongs to.
        self._link: torch.Tensor | None = None

    def _receive(self, handle: Handle) -> ReceivedRows:
        self._handle = handle
        self._received = ReceivedRows.of(handle)
        self.counts = self._received.counts
        self.peers_have_more = handle.peers_have_more
        return self._received


@opaque
def dispatch(
    buffer: Buffer,
    x: torch.Tensor,
    topk_idx: torch.Tensor,
    topk_weights: torch.Tensor,
    active_ranks: torch.Tensor | None,
    num_max_dispatch_tokens_per_rank: int,
    num_experts: int,
    timeout_us: int,
    *,
    more: bool = False,
) -> tuple[torch.Tensor, Routing]:
    """Sends each token's row to the ranks that own its experts. Collective.

    Args:
        buffer: made with ``num_ep_buffer_bytes`` of at least this module's
            ``get_ep_buffer_size_hint``.
        x: bf16 [T, H], contiguous; H a multiple of 8, T <= M.
        topk_idx: int64 or int32 [T, K], contiguous; -1 selects nothing.
        topk_weights: float32, bf16 or float16 [T, K], contiguous. Used by ``combine``; given here
            because their gradients come back with those of x, in the dtype of the weights.
        active_ranks: as for ``Buffer.dispatch``; the backward uses, and clears, the same tensor.
        num_max_dispatch_tokens_per_rank, num_experts, more: as for ``Buffer.dispatch``.
        timeout_us: for each phase of each operation, also in the backward; -1 for none.

    Returns:
        ``(rows, routing)``: rows is an ordinary bf16 tensor [N, H], ordered by local expert,
        source rank and token, so that sums over rows have the same bits in every run;
        ``routing.counts`` says how many rows each local expert has.

    Raises:
        BusyError: ``num_slots`` calls of the buffer are between dispatch and combine.
        MoewireError: as for ``Buffer.dispatch``.
    """
    check_inputs(buffer, x, topk_idx, topk_weights)
    call = _Call(buffer, active_ranks, num_max_dispatch_tokens_per_rank, num_experts, timeout_us)
    need = get_ep_buffer_size_hint(
        num_max_dispatch_tokens_per_rank,
        x.shape[1],
        buffer.group_size,
        num_experts,
        topk_idx.shape[1],
        num_slots=buffer.num_slots,
    )
    if torch.is_grad_enabled():
        call.check_size("get_ep_buffer_size_hint", need)
    routing = Routing(call, topk_idx, topk_weights.detach())
    rows, routing._link = _Dispatch.apply(new_anchor(x), x, topk_weights, topk_idx, routing, more)
    return rows, routing


@opaque
def combine(y: torch.Tensor, routing: Routing) -> torch.Tensor:
    """Brings expert outputs back and sums them with the routing weights. Collective.

    Args:
        y: bf16 [N, H], contiguous, expert outputs in the order of ``rows``.
        routing: of the dispatch, to be combined once.

    Returns:
        bf16 [T, H]: for each token the sum over k, in order of k, of weight times row of
        ``y``, multiplied and added in float32 and rounded once.

    Raises:
        InvalidArgument: ``y`` or ``routing`` is wrong, or the routing was combined before.
        MoewireError: as for ``Buffer.combine``.
    """
    if not isinstance(routing, Routing):
        raise check.refuse("routing", type(routing).__name__, "what dispatch returned")
    if routing._handle is None:
        raise check.refuse("routing", "one that was combined", "each once")
    refuse_capture(routing._call.buffer)
    shape = (sum(routing.counts), routing._handle[3])
    check.tensor("y", y, torch.bfloat16, shape, place_of(routing._call.buffer))
    out: torch.Tensor = _Combine.apply(y, routing._link, routing)
    return out


class _Dispatch(torch.autograd.Function):  # type: ignore[misc]  # torch is not followed
    @staticmethod
    def forward(
        ctx: Any,
        anchor: torch.Tensor,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_idx: torch.Tensor,
        routing: Routing,
        more: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        recv_x, handle = routing._call.dispatch(x, topk_idx, more)
        received = routing._receive(handle)
        rows = received.take(recv_x)
        ctx.call = routing._call
        # All of it as tensors: with checkpointing they are then those of the second forward, like
        # the rows that the experts saved.
        ctx.save_for_backward(topk_idx, received.keys)
        link = (rows.shape[0], topk_idx.shape[1])
        return rows, rows.new_zeros(link, dtype=torch.float32)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_rows: torch.Tensor, grad_link: torch.Tensor) -> tuple[Any, ...]:
        topk_idx, keys = ctx.saved_tensors
        hidden, num_topk = grad_rows.shape[1], topk_idx.shape[1]
        call: _Call = ctx.call
        returning = call.take_returning()
        if returning is None:  # nothing was combined: sent only to learn where rows go
            returning = call.send(_piggyback.nothing(topk_idx, hidden), topk_idx)
        rows = returning.put(_piggyback.with_scalars(grad_rows, grad_link), keys)
        once = _first_of_each(topk_idx)
        unit = torch.ones(topk_idx.shape, dtype=torch.float32, device=topk_idx.device)
        out = call.combine(rows, returning.received.positions, once, unit, returning.handle)
        grad_x = out[:, :hidden].contiguous()
        home = _piggyback.scalars_of(out, hidden, num_topk)  # torch rounds to the weights' dtype
        return None, grad_x, home, None, None, None


class _Combine(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, y: torch.Tensor, link: torch.Tensor, routing: Routing) -> torch.Tensor:
        call, handle, received = routing._call, routing._handle, routing._received
        assert handle is not None
        routing._handle = None
        topk_idx, topk_weights = routing._topk_idx, routing._topk_weights
        ctx.call = call
        ctx.save_for_backward(y, received.keys, topk_idx, topk_weights)
        return call.combine(y, received.positions, topk_idx, topk_weights, handle)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[Any, ...]:
        y, keys, topk_idx, topk_weights = ctx.saved_tensors
        call: _Call = ctx.call
        call.close_returning()
        with_routing = _piggyback.with_routing(grad_out.contiguous(), topk_idx, topk_weights)
        rows = call.keep(call.send(with_routing, topk_idx)).take(keys)
        hidden, num_topk = y.shape[1], topk_idx.shape[1]
        ids, weights = _piggyback.routing_of(rows, hidden, num_topk)
        selected = ids == _expert_of(keys, call).unsqueeze(1)
        gradient = rows[:, :hidden].float()
        dots = (y.float() * gradient).sum(1, keepdim=True)
        weight = torch.where(selected, weights, 0.0).sum(1, keepdim=True)
        grad_y = (weight * gradient).to(torch.bfloat16)
        return grad_y, torch.where(selected, dots, 0.0), None


def _expert_of(keys: torch.Tensor, call: _Call) -> torch.Tensor:
    """The expert, of all E, that each row is for."""
    num_ranks = call.buffer.group_size
    first = call.buffer.rank * (call.num_experts // num_ranks)
    return first + keys // (num_ranks * call.num_max_tokens)


def _first_of_each(topk_idx: torch.Tensor) -> torch.Tensor:
    """``topk_idx`` with -1 where the same token has selected the same expert before.

    Two selections of one expert share one row, and the gradient of that row counts once.
    """
    equal = topk_idx.unsqueeze(2) == topk_idx.unsqueeze(1)  # [T, K, K]
    again = equal.tril(-1).any(2)
    return torch.where(again, -1, topk_idx)
