"""Operators for compiled code: calls that ``torch.compile`` keeps in its graph, with gradients.

    number = ops.register(buffer)  # once, outside of compiled code

    @torch.compile(fullgraph=True)
    def layer(x, topk_idx, topk_weights):
        rows, ids, weights, handle = ops.dispatch(number, x, topk_idx, topk_weights, M, E)
        return ops.combine(handle, experts(rows, ids, weights), x.shape[0])  # rows [R*M, H]

A tracer knows sizes, not values. So results here have sizes that follow from the arguments: as many
rows as could come, those that did not come being zeros with ids -1 and weights 0. With
``scatter(num_rows=None)`` there are as many rows as come. The tracer takes such a size only with
``torch._dynamo.config.capture_dynamic_output_shape_ops``; without it, as by default, the graph ends
there, and another one begins behind.

A *handle* is a tensor of one number, made by ``dispatch`` or ``make_routing``. What it stands for
lives as long as its memory: while the tensor is held, or a graph that saved it for the backward. A
copy of it holds nothing. At most 65,536 are alive at a time.

Results are ordinary tensors. All calls are collective, in one order on all ranks: ranks compile the
same function. From torch 2.15 on calls keep their order in a graph. Before that, calls of one graph
that do not depend on one another may change places, so let each use what the one before returned. A
tensor requires a gradient on every rank or on none, and what an expert returns depends on its rows
on every rank. ``moewire.autograd`` has neither rule, and no graph.

Notation as in ``moewire.Buffer``.
"""

from __future__ import annotations

from .._base import needs_torch  # noqa: F401, isort: skip

import torch

from .._base import check
from .._ep import selections
from . import _flat, _routed
from ._tables import register

__all__ = [
    "combine",
    "counts",
    "dispatch",
    "gather",
    "make_routing",
    "recv_topk_idx",
    "register",
    "scatter",
]


def dispatch(
    buffer: int,
    x: torch.Tensor,
    topk_idx: torch.Tensor,
    topk_weights: torch.Tensor,
    num_max_dispatch_tokens_per_rank: int,
    num_experts: int,
    *,
    timeout_us: int = -1,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sends each token once to every rank that owns some of its experts. Collective.

    Args:
        buffer: from ``register``; for gradients made with at least
            ``moewire.autograd.get_flat_buffer_size_hint`` bytes.
        x: bf16 [T, H].
        topk_idx: int64 or int32 [T, K]; -1 selects nothing.
        topk_weights: float32, bf16 or float16 [T, K].
        num_max_dispatch_tokens_per_rank, num_experts: M and E, the same on every rank.
        timeout_us: for each phase of each operation, also in the backward; -1 for none.

    Returns:
        ``(rows, ids, weights, handle)``: bf16 [R*M, H], in order of source rank and token; int64
        [R*M, K], experts by local number, -1: not on this rank; float32 [R*M, K], 0 there. The
        gradients of rows and weights flow. The handle holds a slot until it is combined or dropped.

    Raises:
        MoewireError: as for ``moewire.autograd.dispatch_flat``, when the call runs.
    """
    num_max = num_max_dispatch_tokens_per_rank
    learns = torch.is_grad_enabled() and (x.requires_grad or topk_weights.requires_grad)
    found: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor] = _flat.dispatch(
        buffer, x, topk_idx, topk_weights, num_max, num_experts, timeout_us, learns
    )
    return found


def combine(handle: torch.Tensor, y: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """Brings the ranks' sums back and adds them up. Collective.

    Args:
        handle: of ``dispatch``; combined once.
        y: bf16 [R*M, H], rows as dispatched: the weighted sum of a row's experts here. Rows that
            did not come are not read.
        num_tokens: T.

    Returns:
        bf16 [T, H], as of ``moewire.autograd.combine_flat``.

    Raises:
        UnknownHandleError: the handle's memory has ended.
        MoewireError: as for ``moewire.autograd.combine_flat``, when the call runs.
    """
    out: torch.Tensor = _flat.combine(handle, y, num_tokens)
    return out


def make_routing(
    buffer: int, topk_idx: torch.Tensor, num_experts: int, *, timeout_us: int = -1
) -> torch.Tensor:
    """Tells every rank where this rank's tokens go, and learns which rows come. Collective.

    Args:
        buffer: from ``register``.
        topk_idx, num_experts, timeout_us: as for ``Buffer.make_routing``.

    Returns:
        A handle, to be used by any number of calls of its epoch.

    Raises:
        BusyError: too many handles are alive.
        MoewireError: as for ``Buffer.make_routing``, when the call runs.
    """
    handle: torch.Tensor = _routed.make_routing(buffer, topk_idx, num_experts, timeout_us)
    return handle


def scatter(
    handle: torch.Tensor,
    x: torch.Tensor,
    topk_weights: torch.Tensor | None = None,
    *,
    num_rows: int | None = None,
    expanded: bool = False,
    expert_alignment: int = 1,
    timeout_us: int = -1,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Brings each token's row to its ranks. Collective; its backward is a gather.

    Args:
        handle: of ``make_routing``.
        x: bf16 or float32 [T, H], expanded bf16; H a multiple of 8.
        topk_weights: float32, bf16 or float16 [T, K]. All ranks give weights or none does.
        num_rows: of the results, at least as many as come: if no rank has more than M tokens, R*M
            suffice, expanded R*M*K + L * (expert_alignment - 1). None: as many as come.
        expanded, expert_alignment: as for ``Buffer.scatter``. Rows between experts are zeros.
        timeout_us: for each wait for other ranks, also in the backward; -1 for none.

    Returns:
        ``(rows, weights)``: [num_rows, H] of x's dtype; float32 [num_rows, K], expanded [num_rows],
        or None without ``topk_weights``. Rows that did not come are zeros.

    Raises:
        InvalidArgument: more than ``num_rows`` rows came. The other ranks have theirs.
        UnknownHandleError: the handle's memory has ended.
        MoewireError: as for ``Buffer.scatter``, when the call runs.
    """
    given = None if topk_weights is None else _float32(topk_weights)
    how = num_rows, expanded, expert_alignment, timeout_us
    rows, weights = _routed.scatter(handle, x, given, *how)
    return rows, None if given is None else weights


def _float32(topk_weights: torch.Tensor) -> torch.Tensor:
    """The weights as they travel. Gradients get the dtype of those that were given."""
    allowed = selections.WEIGHTS
    dtype = getattr(topk_weights, "dtype", None)
    if dtype not in allowed:
        given = type(topk_weights).__name__ if dtype is None else f"dtype {dtype}"
        raise check.refuse("topk_weights", given, f"dtype {', '.join(map(str, allowed))}")
    return topk_weights.float()


def gather(
    handle: torch.Tensor,
    y: torch.Tensor,
    num_tokens: int,
    *,
    expanded: bool = False,
    expert_alignment: int = 1,
    timeout_us: int = -1,
) -> torch.Tensor:
    """Brings rows back to their tokens, and adds them up. Collective; its backward is a scatter.

    Args:
        handle: of ``make_routing``.
        y: bf16 or float32 [num_rows, H], expanded bf16; as many rows as the scatter has. Those that
            did not come are not read.
        num_tokens: T.
        expanded, expert_alignment: as for the scatter that made such rows.
        timeout_us: as for ``scatter``.

    Returns:
        [T, H] of y's dtype: for each token the sum of its rows, as of ``Buffer.gather``.

    Raises:
        MoewireError: as for ``scatter``.
    """
    how = expanded, expert_alignment, timeout_us
    out, _ = _routed.gather(handle, y, None, num_tokens, 0, *how)
    found: torch.Tensor = out
    return found


def recv_topk_idx(handle: torch.Tensor, num_rows: int, num_topk: int) -> torch.Tensor:
    """The experts of each compact row. Local: no other rank takes part.

    Args:
        handle: of ``make_routing``.
        num_rows: of the scatter's rows.
        num_topk: K.

    Returns:
        int64 [num_rows, K]: 0 to L-1 on this rank, -1 elsewhere, and for rows that did not come.

    Raises:
        InvalidArgument: fewer rows than came, or another K.
        UnknownHandleError: the handle's memory has ended.
    """
    found: torch.Tensor = _routed.recv_topk_idx(handle, num_rows, num_topk)
    return found


def counts(handle: torch.Tensor, num_local_experts: int) -> torch.Tensor:
    """How many selections each expert of this rank has. Local: no other rank takes part.

    Args:
        handle: of ``make_routing``.
        num_local_experts: L.

    Returns:
        int64 [L].

    Raises:
        InvalidArgument: another L.
        UnknownHandleError: the handle's memory has ended.
    """
    found: torch.Tensor = _routed.counts(handle, num_local_experts)
    return found
