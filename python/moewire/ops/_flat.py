"""The operators ``dispatch`` and ``combine``, in the flat form, with as many rows as could come.

Their backward is that of ``moewire.autograd``: one dispatch and one combine, by the routing that
the handle keeps.
"""

from __future__ import annotations

from typing import Any

import torch

from .._base import check
from .._ep.flat_results import FlatHandle, FlatReceived
from ..autograd._backward import check_inputs, place_of, refuse_capture
from ..autograd._flat import FlatCall
from ..autograd._rows import ReceivedRows
from . import _tables
from ._define import define


class _Open:
    """What a dispatch's handle stands for. It holds a slot until it is combined or dropped."""

    def __init__(self, call: FlatCall, received: FlatReceived) -> None:
        self.call = call
        self.handle: FlatHandle = received.handle
        self.there = ReceivedRows.of_flat(received, call.num_max_tokens)
        self.num_rows = call.buffer.group_size * call.num_max_tokens  # those that could come
        self.combined = False

    def __del__(self) -> None:
        if not getattr(self, "combined", True):
            self.handle._release()

    def padded(self, rows: torch.Tensor, value: int = 0) -> torch.Tensor:
        """Rows [N, ...] with others behind them, up to R*M."""
        whole = rows.new_full((self.num_rows, *rows.shape[1:]), value)
        whole[: len(rows)] = rows
        return whole

    def came(self, rows: torch.Tensor) -> torch.Tensor:
        """The first N of R*M rows."""
        return rows[: len(self.there.keys)].contiguous()


def _open_of(handle: torch.Tensor) -> _Open:
    held = _tables.held_by(handle)
    if not isinstance(held, _Open):
        raise check.refuse("handle", "one of make_routing", "what dispatch returned")
    return held


def _dispatch(
    buffer: int,
    x: torch.Tensor,
    topk_idx: torch.Tensor,
    topk_weights: torch.Tensor,
    num_max_tokens: int,
    num_experts: int,
    timeout_us: int,
    learns: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    one = _tables.buffer_of(buffer)
    # The handle keeps the ids, and compiled code may use their memory again.
    ids = topk_idx.clone(memory_format=torch.contiguous_format)
    given = x.contiguous(), ids, topk_weights.contiguous()
    check_inputs(one, *given)
    _tables.refuse_full()
    call = FlatCall(one, None, num_max_tokens, num_experts, timeout_us)
    if learns:
        call.check_backward(x.shape[1], ids.shape[1])
    received = call.dispatch(*given)
    made = _Open(call, received)
    parts = received.recv_x, received.recv_topk_idx, received.recv_topk_weights
    rows, local, weights = (made.there.take(part) for part in parts)
    received.forget()
    empty = made.padded(local, -1)
    return made.padded(rows), empty, made.padded(weights), _tables.keep(made)


def _dispatch_fake(
    buffer: int,
    x: torch.Tensor,
    topk_idx: torch.Tensor,
    topk_weights: torch.Tensor,
    num_max_tokens: int,
    num_experts: int,
    timeout_us: int,
    learns: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    most, topk = _tables.buffer_of(int(buffer)).group_size * num_max_tokens, topk_idx.shape[1]
    return (
        x.new_empty((most, x.shape[1])),
        x.new_empty((most, topk), dtype=torch.int64),
        x.new_empty((most, topk), dtype=torch.float32),
        torch.empty(1, dtype=torch.int64, device="cpu"),
    )


def _combine(handle: torch.Tensor, y: torch.Tensor, num_tokens: int) -> torch.Tensor:
    made = _open_of(handle)
    if made.combined:
        raise check.refuse("handle", "one that was combined", "each once")
    if num_tokens != made.handle._num_tokens:
        raise check.refuse("num_tokens", num_tokens, f"the dispatch's {made.handle._num_tokens}")
    buffer, y = made.call.buffer, y.contiguous()
    shape = made.num_rows, made.handle._plan.hidden
    check.tensor("y", y, torch.bfloat16, shape, place_of(buffer))
    refuse_capture(buffer)
    out = made.call.combine(made.came(y), made.there.positions, made.handle)
    made.combined = True
    return out


def _combine_fake(handle: torch.Tensor, y: torch.Tensor, num_tokens: int) -> torch.Tensor:
    return y.new_empty((num_tokens, y.shape[1]))


def _to_experts(handle: torch.Tensor, grad_out: torch.Tensor, num_rows: int) -> torch.Tensor:
    made = _open_of(handle)
    return made.padded(made.call.to_experts(made.handle, made.there.keys, grad_out.contiguous()))


def _to_experts_fake(handle: torch.Tensor, grad_out: torch.Tensor, num_rows: int) -> torch.Tensor:
    return grad_out.new_empty((num_rows, grad_out.shape[1]))


def _to_tokens(
    handle: torch.Tensor,
    ids: torch.Tensor,
    grad_rows: torch.Tensor,
    grad_weights: torch.Tensor,
    num_tokens: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    made = _open_of(handle)
    given = (made.came(one) for one in (ids, grad_rows, grad_weights))
    return made.call.to_tokens(made.handle, made.there.keys, *given)


def _to_tokens_fake(
    handle: torch.Tensor,
    ids: torch.Tensor,
    grad_rows: torch.Tensor,
    grad_weights: torch.Tensor,
    num_tokens: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    grad_x = grad_rows.new_empty((num_tokens, grad_rows.shape[1]))
    return grad_x, grad_weights.new_empty((num_tokens, grad_weights.shape[1]))


dispatch = define(
    "dispatch(SymInt buffer, Tensor x, Tensor topk_idx, Tensor topk_weights, SymInt num_max_tokens,"
    " SymInt num_experts, int timeout_us, bool learns) -> (Tensor, Tensor, Tensor, Tensor)",
    _dispatch,
    _dispatch_fake,
)
combine = define(
    "combine(Tensor handle, Tensor y, SymInt num_tokens) -> Tensor", _combine, _combine_fake
)
to_experts = define(
    "combine_backward(Tensor handle, Tensor grad_out, SymInt num_rows) -> Tensor",
    _to_experts,
    _to_experts_fake,
)
to_tokens = define(
    "dispatch_backward(Tensor handle, Tensor topk_idx, Tensor grad_rows, Tensor grad_weights, "
    "SymInt num_tokens) -> (Tensor, Tensor)",
    _to_tokens,
    _to_tokens_fake,
)


def _after_dispatch(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, ids, _, handle = output
    ctx.save_for_backward(handle, ids)
    ctx.num_tokens, ctx.weights_dtype = inputs[1].shape[0], inputs[3].dtype


def _dispatch_backward(
    ctx: Any, grad_rows: torch.Tensor, _: Any, grad_weights: torch.Tensor, __: Any
) -> tuple[Any, ...]:
    handle, ids = ctx.saved_tensors
    grad_x, home = to_tokens(handle, ids, grad_rows, grad_weights, ctx.num_tokens)
    return None, grad_x, None, home.to(ctx.weights_dtype), None, None, None, None


def _after_combine(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    handle, y, _ = inputs
    ctx.save_for_backward(handle)
    ctx.num_rows = y.shape[0]


def _combine_backward(ctx: Any, grad_out: torch.Tensor) -> tuple[Any, ...]:
    (handle,) = ctx.saved_tensors
    return None, to_experts(handle, grad_out, ctx.num_rows), None


dispatch.register_autograd(_dispatch_backward, setup_context=_after_dispatch)
combine.register_autograd(_combine_backward, setup_context=_after_combine)
