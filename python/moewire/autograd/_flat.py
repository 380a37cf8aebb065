"""Gradients through the flat form; ``moewire.autograd`` makes the names public."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from .._base import check
from .._base.opaque import opaque
from .._ep.flat_results import FlatHandle, FlatReceived
from ..buffer import Buffer
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
from ._rows import ReceivedRows

if TYPE_CHECKING:
    FlatReturning = Returning[FlatHandle]


def get_flat_buffer_size_hint(
    num_max_dispatch_tokens_per_rank: int,
    hidden: int,
    num_ranks: int,
    num_topk: int,
    *,
    num_slots: int = 2,
) -> int:
    """Bytes to construct a ``Buffer`` with for training in the flat form.

    Args:
        num_max_dispatch_tokens_per_rank: M.
        hidden: H.
        num_ranks: R.
        num_topk: K.
        num_slots: as for ``Buffer``.

    Returns:
        The size for ``num_ep_buffer_bytes``.

    Raises:
        InvalidArgument: a number is out of its bounds.
    """
    width, num_topk = piggyback_hint(hidden, num_topk)
    return Buffer.get_flat_buffer_size_hint(
        num_max_dispatch_tokens_per_rank,
        width,
        num_ranks,
        num_topk,
        num_slots=num_slots,
    )


class FlatCall(Call[FlatHandle]):
    """The flat operations of one layer's call."""

    def check_backward(self, hidden: int, num_topk: int) -> None:
        """Refuses in the forward what would not fit in the backward."""
        buffer = self.buffer
        need = get_flat_buffer_size_hint(
            self.num_max_tokens, hidden, buffer.group_size, num_topk, num_slots=buffer.num_slots
        )
        self.check_size("get_flat_buffer_size_hint", need)

    def dispatch(
        self,
        rows: torch.Tensor,
        topk_idx: torch.Tensor | None,
        topk_weights: torch.Tensor | None,
        more: bool = False,
        handle: FlatHandle | None = None,
    ) -> FlatReceived:
        """Everything in the workspace; the receive is finished."""
        return self.buffer.dispatch_flat(
            rows,
            topk_idx,
            topk_weights,
            self.num_max_tokens,
            self.num_experts,
            active_ranks=self.active_ranks,
            timeout_us=self.timeout_us,
            more=more,
            handle=handle,
        )

    def combine(
        self, rows: torch.Tensor, positions: torch.Tensor, handle: FlatHandle
    ) -> torch.Tensor:
        """Puts rows [N, H] at their positions, brings them back, releases the handle."""
        with handle:
            place = self.buffer.get_next_combine_buffer(handle, timeout_us=self.timeout_us)
            place.index_copy_(0, positions, rows)
            out, _, _ = self.buffer.combine_flat(
                place,
                handle,
                active_ranks=self.active_ranks,
                timeout_us=self.timeout_us,
                zero_copy=True,
            )
        return out

    def send(self, rows: torch.Tensor, routing: FlatHandle) -> FlatReturning:
        """The first half of a backward, by the routing of the forward."""
        refuse_capture(self.buffer)
        received = self.dispatch(rows, None, None, handle=routing)
        recv_x = received.recv_x
        assert isinstance(recv_x, torch.Tensor)  # a pair only with fp8
        there = ReceivedRows.of_flat(received, self.num_max_tokens)
        return Returning(recv_x, received.handle, there)

    def to_experts(
        self, handle: FlatHandle, keys: torch.Tensor, grad_out: torch.Tensor
    ) -> torch.Tensor:
        """The backward of a combine: the gradients of its rows, in the order of the forward."""
        self.close_returning()
        hidden = grad_out.shape[1]
        extended = _piggyback.nothing(handle._topk_idx, hidden)
        extended[:, :hidden] = grad_out
        rows = self.keep(self.send(extended, handle)).take(keys)
        return rows[:, :hidden].contiguous()

    def to_tokens(
        self,
        handle: FlatHandle,
        keys: torch.Tensor,
        ids: torch.Tensor,
        grad_rows: torch.Tensor,
        grad_weights: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The backward of a dispatch: the gradients of x, and those of the weights in float32."""
        hidden, num_topk = grad_rows.shape[1], ids.shape[1]
        returning = self.take_returning()
        if returning is None:  # nothing was combined: sent only to learn where rows go
            returning = self.send(_piggyback.nothing(handle._topk_idx, hidden), handle)
        own = torch.where(ids >= 0, grad_weights, 0.0)  # the other gradients are another rank's
        rows = returning.put(_piggyback.with_scalars(grad_rows, own), keys)
        out = self.combine(rows, returning.received.positions, returning.handle)
        grad_x = out[:, :hidden].contiguous()
        return grad_x, _piggyback.scalars_of(out, hidden, num_topk)


class FlatRouting:
    """What ``dispatch_flat`` did, for the experts and for ``combine_flat``. Used once.

    - ``topk_idx``: int64 [N, K], the experts of each row by local number; -1: not on this rank.
    - ``topk_weights``: float32 [N, K], their weights, 0 where the id is -1. Gradients flow.
    - ``peers_have_more``: whether any rank dispatched with ``more=True``.
    """

    topk_idx: torch.Tensor
    topk_weights: torch.Tensor
    peers_have_more: bool

    def __init__(self, call: FlatCall) -> None:
        self._call = call
        self._handle: FlatHandle | None = None
        self._link: torch.Tensor | None = None  # empty; joins a combine to its dispatch

    def __del__(self) -> None:
        # It was never combined: the graph keeps the handle for its routing, but no rows.
        handle = getattr(self, "_handle", None)
        if handle is not None:
            handle._release()

    def _receive(self, received: FlatReceived) -> ReceivedRows:
        self._handle = received.handle
        self._received = ReceivedRows.of_flat(received, self._call.num_max_tokens)
        self.peers_have_more = received.handle.peers_have_more
        return self._received


@opaque
def dispatch_flat(
    buffer: Buffer,
    x: torch.Tensor,
    topk_idx: torch.Tensor,
    topk_weights: torch.Tensor,
    num_max_dispatch_tokens_per_rank: int,
    num_experts: int,
    *,
    active_ranks: torch.Tensor | None = None,
    timeout_us: int = -1,
    more: bool = False,
) -> tuple[torch.Tensor, FlatRouting]:
    """Sends each token once to every rank that owns some of its experts. Collective.

    Args:
        buffer: made with ``num_ep_buffer_bytes`` of at least ``get_flat_buffer_size_hint``.
        x: bf16 [T, H], contiguous.
        topk_idx: int64 or int32 [T, K], contiguous.
        topk_weights: float32, bf16 or float16 [T, K], contiguous; their gradients have their
            dtype. They arrive as float32.
        num_max_dispatch_tokens_per_rank, num_experts, active_ranks, timeout_us, more: as for
            ``Buffer.dispatch_flat``, also in the backward.

    Returns:
        ``(rows, routing)``: rows is an ordinary bf16 tensor [N, H], ordered by source rank
        and token; ``routing`` says which experts each row is for, with which weights. Rows of lost
        ranks are not among them.

    Raises:
        BusyError: ``num_slots`` calls of the buffer are between dispatch and combine.
        MoewireError: as for ``Buffer.dispatch_flat``.
    """
    check_inputs(buffer, x, topk_idx, topk_weights)
    call = FlatCall(buffer, active_ranks, num_max_dispatch_tokens_per_rank, num_experts, timeout_us)
    if torch.is_grad_enabled():
        call.check_backward(x.shape[1], topk_idx.shape[1])
    routing = FlatRouting(call)
    rows, routing.topk_weights, routing.topk_idx, routing._link = _DispatchFlat.apply(
        new_anchor(x), x, topk_weights, topk_idx, routing, more
    )
    return rows, routing


@opaque
def combine_flat(y: torch.Tensor, routing: FlatRouting) -> torch.Tensor:
    """Brings the ranks' sums back and adds them up. Collective.

    Args:
        y: bf16 [N, H], contiguous: for each row the weighted sum of its experts' outputs here.
        routing: of the dispatch, to be combined once.

    Returns:
        bf16 [T, H]: float32 sums over a token's ranks, in order of rank, rounded once.

    Raises:
        InvalidArgument: ``y`` or ``routing`` is wrong, or the routing was combined before.
        MoewireError: as for ``Buffer.combine_flat``.
    """
    if not isinstance(routing, FlatRouting):
        raise check.refuse("routing", type(routing).__name__, "what dispatch_flat returned")
    if routing._handle is None:
        raise check.refuse("routing", "one that was combined", "each once")
    buffer = routing._call.buffer
    refuse_capture(buffer)
    shape = (routing._received.keys.numel(), routing._handle._plan.hidden)
    check.tensor("y", y, torch.bfloat16, shape, place_of(buffer))
    out: torch.Tensor = _CombineFlat.apply(y, routing._link, routing)
    return out


class _DispatchFlat(torch.autograd.Function):  # type: ignore[misc]  # torch is not followed
    @staticmethod
    def forward(
        ctx: Any,
        anchor: torch.Tensor,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_idx: torch.Tensor,
        routing: FlatRouting,
        more: bool,
    ) -> tuple[torch.Tensor, ...]:
        received = routing._call.dispatch(x, topk_idx, topk_weights, more)
        there = routing._receive(received)
        parts = (received.recv_x, received.recv_topk_weights, received.recv_topk_idx)
        rows, weights, ids = (there.take(part) for part in parts)
        received.forget()  # the handle lives as long as the graph
        ctx.mark_non_differentiable(ids)
        ctx.call, ctx.handle = routing._call, received.handle
        ctx.save_for_backward(topk_idx, ids, there.keys)
        return rows, weights, ids, _nothing(x.device)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(
        ctx: Any, grad_rows: torch.Tensor, grad_weights: torch.Tensor, *_: Any
    ) -> tuple[Any, ...]:
        _, ids, keys = ctx.saved_tensors
        grad_x, home = ctx.call.to_tokens(ctx.handle, keys, ids, grad_rows, grad_weights)
        return None, grad_x, home, None, None, None  # torch rounds home to the dtype of the weights


class _CombineFlat(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, y: torch.Tensor, link: torch.Tensor, routing: FlatRouting
    ) -> torch.Tensor:
        call, handle, received = routing._call, routing._handle, routing._received
        assert handle is not None
        routing._handle = None
        ctx.call, ctx.handle = call, handle
        # The handle will use the ids again: saved, so that torch notices if they change.
        ctx.save_for_backward(received.keys, handle._topk_idx)
        return call.combine(y, received.positions, handle)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[Any, ...]:
        keys, _ = ctx.saved_tensors
        grad_y = ctx.call.to_experts(ctx.handle, keys, grad_out)
        return grad_y, _nothing(grad_out.device), None


def _nothing(device: torch.device) -> torch.Tensor:
    return torch.empty(0, dtype=torch.float32, device=device)
