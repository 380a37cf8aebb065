"""Gradients through scatter and gather; ``moewire.autograd`` makes the names public.

Each is the backward of the other, over the same routing: a scatter copies a token's row to its
ranks, so its gradient is the sum of theirs; a gather adds rows up, so each row's gradient is that
of its token. Nothing is saved but the routing, which the graph holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

from .._base import check
from .._base.opaque import opaque
from .._ep import selections
from .._ep.routing import Routing, refuse_foreign
from ..buffer import Buffer
from ._backward import new_anchor, place_of

_ROWS = (torch.bfloat16, torch.float32)


class RoutedCall(NamedTuple):
    """One call over a routing: what its forward and its backward share."""

    buffer: Buffer
    routing: Routing
    expanded: bool
    alignment: int
    timeout_us: int

    @property
    def num_rows(self) -> int:
        """How many rows come, those between experts included."""
        if self.expanded:
            return self.routing.num_expanded_rows(self.alignment)
        return self.routing.num_rows

    def check_rows(self, name: str, rows: torch.Tensor, count: int) -> None:
        """Checks for rows that a gather takes: forward or backward, one brings them back."""
        allowed = _ROWS[:1] if self.expanded else _ROWS
        given = getattr(rows, "dtype", None)
        dtype = given if given in allowed else allowed[0]
        assert dtype is not None
        check.tensor(name, rows, dtype, (count, None), place_of(self.buffer), allowed)
        check.hidden(rows.shape[1], False, name=name)

    def whole(
        self, gradient: torch.Tensor | None, shape: torch.Size, dtype: torch.dtype
    ) -> torch.Tensor:
        """A gradient as the library takes it; zeros, where the buffer is, if there is none."""
        if gradient is None:
            return place_of(self.buffer).empty(tuple(shape), dtype).zero_()
        return gradient.contiguous()

    def scatter(
        self, x: torch.Tensor, topk_weights: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Rows and weights; zeros between experts, lest something undefined has a gradient."""
        rows, weights, _ = self.buffer.scatter(
            self.routing,
            x,
            topk_weights=topk_weights,
            expanded=self.expanded,
            expert_alignment=self.alignment,
            zero_gaps=self.expanded,
            timeout_us=self.timeout_us,
        )
        return rows, weights

    def gather(
        self,
        y: torch.Tensor,
        topk_weights: torch.Tensor | None,
        dtype: torch.dtype,
        bias: Sequence[torch.Tensor] = (),
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Sums in ``dtype``, and the weights, each from the rank of its selection."""
        out = y.new_empty((self.routing.num_tokens, y.shape[1]), dtype=dtype)
        return self.buffer.gather(
            self.routing,
            y,
            topk_weights=topk_weights,
            owners_only=True,
            bias=bias,
            out=out,
            expanded=self.expanded,
            expert_alignment=self.alignment,
            timeout_us=self.timeout_us,
        )


@opaque
def scatter(
    buffer: Buffer,
    routing: Routing,
    x: torch.Tensor,
    topk_weights: torch.Tensor | None = None,
    *,
    expanded: bool = False,
    expert_alignment: int = 1,
    timeout_us: int = -1,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Brings each token's row to its ranks. Collective; its backward is a gather.

    Args:
        buffer, routing: the buffer, and what its ``make_routing`` returned. A routing may be used
            by any number of calls; the graph holds it until the backward.
        x: bf16 or float32 [T, H], contiguous, H a multiple of 8. Expanded: bf16.
        topk_weights: float32, bf16 or float16 [T, K], contiguous; their gradients have their dtype.
            All ranks give weights or none does.
        expanded, expert_alignment: as for ``Buffer.scatter``. Rows between experts are zeros.
        timeout_us: for each wait for other ranks, also in the backward; -1 for none.

    Returns:
        ``(rows, weights)`` as of ``Buffer.scatter``, ordinary tensors: [rows, H] of x's dtype;
        float32 [N, K], expanded [rows], or None without ``topk_weights``.

    Raises:
        StaleHandleError: the routing is of another epoch; also in the backward.
        MoewireError: as for ``Buffer.scatter``.
    """
    call = _call(buffer, routing, expanded, expert_alignment, timeout_us)
    call.check_rows("x", x, routing.num_tokens)
    if topk_weights is not None:
        _, dtype = selections.dtypes(selections.flags(None, topk_weights))
        shape = (routing.num_tokens, routing.num_topk)
        place = place_of(buffer)
        check.tensor("topk_weights", topk_weights, dtype, shape, place, selections.WEIGHTS)
        topk_weights = topk_weights.float()
    rows, weights = _Scatter.apply(new_anchor(x), x, topk_weights, call)
    return rows, weights


@opaque
def gather(
    buffer: Buffer,
    routing: Routing,
    y: torch.Tensor,
    *,
    rows: torch.Tensor | None = None,
    bias: Sequence[torch.Tensor] = (),
    dtype: torch.dtype = torch.bfloat16,
    expanded: bool = False,
    expert_alignment: int = 1,
    timeout_us: int = -1,
) -> torch.Tensor:
    """Brings rows back to their tokens, and adds them up. Collective; its backward is a scatter.

    Args:
        buffer, routing, timeout_us: as for ``scatter``.
        y: bf16 or float32 [N, H], contiguous; expanded, bf16 [rows, H].
        rows: what the ``scatter`` returned of which ``y`` was made. With it the backward goes on
            to that scatter on every rank, also where ``y`` was made without it: on a rank to which
            no row came, for example. Not needed if ``y`` always comes from ``rows``.
        bias: up to two tensors [T, H] of y's dtype, contiguous, which are added first.
        dtype: of the result, bf16, or float32 if ``y`` is.
        expanded, expert_alignment: as for the scatter that made such rows.

    Returns:
        [T, H]: for each token the biases and the sum of its rows, as ``Buffer.gather``.

    Raises:
        MoewireError: as for ``scatter``.
    """
    call = _call(buffer, routing, expanded, expert_alignment, timeout_us)
    call.check_rows("y", y, call.num_rows)
    if dtype not in (torch.bfloat16, y.dtype):
        or_float32 = ", torch.float32" if y.dtype is torch.float32 else " for such y"
        raise check.refuse("dtype", dtype, f"torch.bfloat16{or_float32}")
    if not (rows is None or isinstance(rows, torch.Tensor)):
        raise check.refuse("rows", type(rows).__name__, "what scatter returned, or None")
    out: torch.Tensor = _Gather.apply(
        new_anchor(y), y, rows, call, dtype, *check.several("bias", bias)
    )
    return out


def _call(
    buffer: object, routing: object, expanded: object, alignment: object, timeout_us: object
) -> RoutedCall:
    if not isinstance(buffer, Buffer):
        raise check.refuse("buffer", type(buffer).__name__, "a moewire.Buffer")
    return RoutedCall(
        buffer,
        refuse_foreign(buffer.runtime, routing),
        check.boolean("expanded", expanded),
        check.limited("expert_alignment", alignment),
        check.timeout(timeout_us),
    )


class _Scatter(torch.autograd.Function):  # type: ignore[misc]  # torch is not followed
    @staticmethod
    def forward(
        ctx: Any,
        anchor: torch.Tensor,
        x: torch.Tensor,
        topk_weights: torch.Tensor | None,
        call: RoutedCall,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        ctx.set_materialize_grads(False)
        rows, weights = call.scatter(x, topk_weights)
        ctx.call, ctx.rows = call, (rows.shape, rows.dtype)
        ctx.weights = None if weights is None else weights.shape
        return rows, weights

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(
        ctx: Any, grad_rows: torch.Tensor | None, grad_weights: torch.Tensor | None
    ) -> tuple[Any, ...]:
        call, weights = ctx.call, None
        rows = call.whole(grad_rows, *ctx.rows)
        if ctx.weights is not None:  # on every rank, whatever was used of them
            weights = call.whole(grad_weights, ctx.weights, torch.float32)
        grad_x, home = call.gather(rows, weights, rows.dtype)
        return None, grad_x, home, None


class _Gather(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any,
        anchor: torch.Tensor,
        y: torch.Tensor,
        rows: torch.Tensor | None,
        call: RoutedCall,
        dtype: torch.dtype,
        *bias: torch.Tensor,
    ) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        out, _ = call.gather(y, None, dtype, bias)
        ctx.call, ctx.dtype, ctx.num_biases = call, y.dtype, len(bias)
        ctx.out = out.shape, out.dtype
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_out: torch.Tensor | None) -> tuple[Any, ...]:
        grad_out = ctx.call.whole(grad_out, *ctx.out)
        grad_y, _ = ctx.call.scatter(grad_out, None)
        biases = [grad_out.to(ctx.dtype)] * ctx.num_biases
        return None, grad_y.to(ctx.dtype), None, None, None, *biases
