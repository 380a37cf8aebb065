"""The operators over routings: ``make_routing``, and ``scatter`` and ``gather``, each the backward
of the other.
"""

from __future__ import annotations

from typing import Any

import torch

from .._base import check
from .._ep.routing import Routing
from ..autograd._routed import RoutedCall
from ..buffer import Buffer
from ..errors import UnsupportedError
from . import _tables
from ._define import define

_MOST_ROWS = (1 << 31) - 1


class _Made:
    """What a routing's handle stands for."""

    def __init__(self, buffer: Buffer, routing: Routing) -> None:
        self.buffer, self.routing = buffer, routing

    def call(self, expanded: bool, alignment: int, timeout_us: int) -> RoutedCall:
        """A call over it."""
        return RoutedCall(self.buffer, self.routing, expanded, alignment, timeout_us)


def _made_of(handle: torch.Tensor) -> _Made:
    held = _tables.held_by(handle)
    if not isinstance(held, _Made):
        raise check.refuse("handle", "one of dispatch", "what make_routing returned")
    return held


def _make_routing(
    buffer: int, topk_idx: torch.Tensor, num_experts: int, timeout_us: int
) -> torch.Tensor:
    one = _tables.buffer_of(buffer)
    _tables.refuse_full()
    if not one.runtime.drives:
        raise UnsupportedError(
            "routings are operators on the CPU only so far, and this buffer is on CUDA: use "
            "moewire.autograd.scatter and gather"
        )
    ids = topk_idx.contiguous()
    return _tables.keep(_Made(one, one.make_routing(ids, num_experts, timeout_us=timeout_us)))


def _make_routing_fake(
    buffer: int, topk_idx: torch.Tensor, num_experts: int, timeout_us: int
) -> torch.Tensor:
    return torch.empty(1, dtype=torch.int64, device="cpu")


def _scatter(
    handle: torch.Tensor,
    x: torch.Tensor,
    topk_weights: torch.Tensor | None,
    num_rows: int | None,
    expanded: bool,
    expert_alignment: int,
    timeout_us: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    call, x = _made_of(handle).call(expanded, expert_alignment, timeout_us), x.contiguous()
    call.check_rows("x", x, call.routing.num_tokens)
    if num_rows is not None:
        check.integer("num_rows", num_rows, 0, _MOST_ROWS)
    given = None if topk_weights is None else topk_weights.contiguous()
    rows, weights = call.scatter(x, given)
    came = len(rows)
    if weights is None:
        weights = rows.new_empty(0, dtype=torch.float32)
    if num_rows is None or num_rows == came:
        return rows, weights
    if came > num_rows:  # only now: the other ranks had to get their rows
        raise check.refuse("num_rows", num_rows, f"at least the {came} rows that came")
    return _padded(rows, num_rows), weights if given is None else _padded(weights, num_rows)


def _padded(rows: torch.Tensor, num_rows: int) -> torch.Tensor:
    """The same, with zeros behind."""
    whole = rows.new_zeros((num_rows, *rows.shape[1:]))
    whole[: len(rows)] = rows
    return whole


def _scatter_fake(
    handle: torch.Tensor,
    x: torch.Tensor,
    topk_weights: torch.Tensor | None,
    num_rows: int | None,
    expanded: bool,
    expert_alignment: int,
    timeout_us: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    rows: Any = torch.library.get_ctx().new_dynamic_size() if num_rows is None else num_rows
    weights: tuple[Any, ...] = (0,)
    if topk_weights is not None:
        weights = (rows,) if expanded else (rows, topk_weights.shape[1])
    sent = x.new_empty(weights, dtype=torch.float32)
    return x.new_empty((rows, *x.shape[1:])), sent


def _gather(
    handle: torch.Tensor,
    y: torch.Tensor,
    topk_weights: torch.Tensor | None,
    num_tokens: int,
    num_topk: int,
    expanded: bool,
    expert_alignment: int,
    timeout_us: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    call = _made_of(handle).call(expanded, expert_alignment, timeout_us)
    came, tokens = call.num_rows, call.routing.num_tokens
    if num_tokens != tokens:
        raise check.refuse("num_tokens", num_tokens, f"the routing's {tokens}")
    if y.dim() and len(y) < came:
        raise check.refuse("y", f"{len(y)} rows", f"at least the {came} that came")
    y = (y[:came] if y.dim() else y).contiguous()
    call.check_rows("y", y, came)
    weights = None if topk_weights is None else topk_weights[:came].contiguous()
    out, home = call.gather(y, weights, y.dtype)
    return out, out.new_empty(0, dtype=torch.float32) if home is None else home


def _gather_fake(
    handle: torch.Tensor,
    y: torch.Tensor,
    topk_weights: torch.Tensor | None,
    num_tokens: int,
    num_topk: int,
    expanded: bool,
    expert_alignment: int,
    timeout_us: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    home = (0,) if topk_weights is None else (num_tokens, num_topk)
    return y.new_empty((num_tokens, y.shape[1])), y.new_empty(home, dtype=torch.float32)


def _recv_topk_idx(handle: torch.Tensor, num_rows: int, num_topk: int) -> torch.Tensor:
    routing = _made_of(handle).routing
    if num_topk != routing.num_topk:
        raise check.refuse("num_topk", num_topk, f"the routing's {routing.num_topk}")
    if num_rows < routing.num_rows:
        raise check.refuse("num_rows", num_rows, f"at least the {routing.num_rows} that came")
    ids = torch.full((num_rows, num_topk), -1, dtype=torch.int64, device="cpu")
    ids[: routing.num_rows] = routing.recv_topk_idx()
    return ids


def _recv_topk_idx_fake(handle: torch.Tensor, num_rows: int, num_topk: int) -> torch.Tensor:
    return handle.new_empty((num_rows, num_topk))


def _counts(handle: torch.Tensor, num_local_experts: int) -> torch.Tensor:
    found = _made_of(handle).routing.counts
    if num_local_experts != len(found):
        raise check.refuse("num_local_experts", num_local_experts, f"the routing's {len(found)}")
    return torch.tensor(found, dtype=torch.int64, device="cpu")


def _counts_fake(handle: torch.Tensor, num_local_experts: int) -> torch.Tensor:
    return handle.new_empty((num_local_experts,))


make_routing = define(
    "make_routing(SymInt buffer, Tensor topk_idx, SymInt num_experts, int timeout_us) -> Tensor",
    _make_routing,
    _make_routing_fake,
)
scatter = define(
    "scatter(Tensor handle, Tensor x, Tensor? topk_weights, SymInt? num_rows, bool expanded, "
    "int expert_alignment, int timeout_us) -> (Tensor, Tensor)",
    _scatter,
    _scatter_fake,
)
gather = define(
    "gather(Tensor handle, Tensor y, Tensor? topk_weights, SymInt num_tokens, SymInt num_topk, "
    "bool expanded, int expert_alignment, int timeout_us) -> (Tensor, Tensor)",
    _gather,
    _gather_fake,
)

recv_topk_idx = define(
    "recv_topk_idx(Tensor handle, SymInt num_rows, SymInt num_topk) -> Tensor",
    _recv_topk_idx,
    _recv_topk_idx_fake,
    collective=False,
)
counts = define(
    "counts(Tensor handle, SymInt num_local_experts) -> Tensor",
    _counts,
    _counts_fake,
    collective=False,
)


def _after_scatter(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    handle, x, weights, _, ctx.expanded, ctx.alignment, ctx.timeout_us = inputs
    ctx.save_for_backward(handle)
    ctx.num_tokens, ctx.weighted = x.shape[0], weights is not None
    ctx.num_topk = weights.shape[1] if ctx.weighted else 0


def _scatter_backward(
    ctx: Any, grad_rows: torch.Tensor, grad_weights: torch.Tensor
) -> tuple[Any, ...]:
    (handle,) = ctx.saved_tensors
    weights = grad_weights if ctx.weighted else None
    how = ctx.num_tokens, ctx.num_topk, ctx.expanded, ctx.alignment, ctx.timeout_us
    grad_x, home = gather(handle, grad_rows, weights, *how)
    return None, grad_x, home if ctx.weighted else None, None, None, None, None


def _after_gather(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    handle, y, weights, _, _, ctx.expanded, ctx.alignment, ctx.timeout_us = inputs
    ctx.save_for_backward(handle)
    ctx.num_rows, ctx.weighted = y.shape[0], weights is not None


def _gather_backward(ctx: Any, grad_out: torch.Tensor, grad_home: torch.Tensor) -> tuple[Any, ...]:
    (handle,) = ctx.saved_tensors
    home = grad_home if ctx.weighted else None
    how = ctx.num_rows, ctx.expanded, ctx.alignment, ctx.timeout_us
    grad_y, weights = scatter(handle, grad_out, home, *how)
    return (None, grad_y, weights if ctx.weighted else None, *[None] * 5)


scatter.register_autograd(_scatter_backward, setup_context=_after_scatter)
gather.register_autograd(_gather_backward, setup_context=_after_gather)
