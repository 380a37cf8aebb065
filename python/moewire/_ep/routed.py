"""Scatter and gather over a routing."""

from __future__ import annotations

from .._base import needs_torch  # noqa: F401, isort: skip

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from .. import _abi as abi
from .._base import check
from .._base.opaque import opaque_methods
from .._native.plan import SLICE_US, row_bytes
from . import routing as _routing
from .engine import Engine
from .routing import Routing


class Scattered(NamedTuple):
    """What ``scatter`` returns. All tensors are the caller's."""

    rows: torch.Tensor  # [rows, ...] of x's dtype
    weights: torch.Tensor | None  # float32 [N, K], or expanded [rows]; None without topk_weights
    extra: torch.Tensor | None  # [rows, ...] of extra's dtype; None without extra


@opaque_methods
class RoutedCalls:
    """The collectives over a routing. ``Buffer`` has the notation.

    Every rank of the group makes the same calls in the same order; on one buffer they run one at a
    time. Other than ``dispatch``, none of them goes on without a rank.
    """

    runtime: Engine

    def make_routing(
        self,
        topk_idx: torch.Tensor | None,
        num_experts: int,
        *,
        is_token_in_rank: torch.Tensor | None = None,
        num_tokens_per_expert: torch.Tensor | None = None,
        timeout_us: int = -1,
    ) -> Routing:
        """Tells every rank where this rank's tokens go, and learns which rows come. Collective.

        T may differ from rank to rank and is not bounded by the buffer: rows go in rounds.

        Args:
            topk_idx: int64 or int32 [T, K], contiguous, the same K <= 64 on every rank; -1 selects
                nothing. Several selected experts of one rank make one row. None on every rank, or
                on none: a routing without expert ids, which needs ``is_token_in_rank``.
            num_experts: E, a multiple of R, the same on every rank.
            is_token_in_rank: bool [T, R], contiguous: which ranks each token goes to. None: those
                of its experts.
            num_tokens_per_expert: int32 [E], contiguous: what the ranks' ``counts`` are added up
                from; None: from ``topk_idx``.
            timeout_us: microseconds for each wait for other ranks, -1 for none.

        Returns:
            A ``Routing``.

        Raises:
            InvalidArgument: an argument is wrong; the text names it. Nothing has happened.
            PeerMismatchError: ranks disagree on K or E. On CUDA calls fail until
                ``update_ep_member`` then, but not after one on K.
            PeerLostError: a rank died, or was later than ``timeout_us``; the text names it. This
                rank has left its epoch: calls fail until ``update_ep_member``. So it has if the
                call was interrupted (Ctrl-C), and the other ranks get this error then.
            BusyError: a handle of this buffer is held that was neither combined nor released.
                Nothing has happened.
            UnsupportedError: on CUDA: the current stream is captured.
            ClosedError, FencedError, UpdatingError: as for ``dispatch``.
        """
        given = is_token_in_rank, num_tokens_per_expert
        return _routing.make(self.runtime, topk_idx, num_experts, *given, timeout_us)

    def scatter(
        self,
        routing: Routing,
        x: torch.Tensor,
        *,
        topk_weights: torch.Tensor | None = None,
        extra: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
        expanded: bool = False,
        expert_alignment: int = 1,
        zero_gaps: bool = False,
        timeout_us: int = -1,
    ) -> Scattered:
        """Brings each token's row to its ranks. Collective.

        Compact rows lie in order of source rank and token, one for each token that comes: N rows.
        Expanded rows are one per selection of an expert of this rank. An expert's rows lie
        together, in order of source rank, token and k (``routing.expanded_rows`` says where).

        No gradient comes back through here: that is ``moewire.autograd.scatter``.

        Args:
            routing: of this buffer and epoch.
            x: [T, ...], contiguous, of any dtype; the bytes per token are a multiple of 16 and the
                same on every rank.
            topk_weights: float32 [T, K], contiguous. All ranks give weights or none does; an empty
                tensor (T = 0) counts as given.
            extra: [T, ...], contiguous, of any dtype, at most 65535 bytes per token: scales, for
                example. The bytes per token are the same on every rank.
            out: where rows go: [rows or more, ...] of x's dtype, contiguous. Rows beyond are left
                alone. None: a new tensor.
            expanded: the layout of rows; each rank's own choice.
            expert_alignment: with ``expanded``: the first row of each expert, and the number of all
                rows, are a multiple of it.
            zero_gaps: with ``expanded``: clear the rows between experts, which otherwise keep what
                they had.
            timeout_us: as for ``make_routing``.

        Returns:
            ``(rows, weights, extra)``. ``rows`` is the part of ``out`` that was written, ``out``
            itself if that is all of it. ``weights`` are 0 where a selection is not here.

        Raises:
            StaleHandleError: the routing is of another epoch. Make a new one.
            MoewireError: as for ``make_routing``.
        """
        engine, tokens = self.runtime, _routing.refuse_foreign(self.runtime, routing).num_tokens
        args = abi.mw_scatter_args_t(
            size=abi.SIZE_OF[abi.mw_scatter_args_t],
            timeout_us=check.timeout(timeout_us),
            slice_us=SLICE_US,
            routing=routing._raw,
            row_bytes=_check_rows(x, tokens, engine),
            x=x.data_ptr(),
        )
        num_rows = _layout(args, routing, expanded, expert_alignment, abi.MW_SCATTER_EXPANDED)
        if check.boolean("zero_gaps", zero_gaps):
            if not expanded:
                raise check.refuse("zero_gaps", "True with expanded False", "with expanded only")
            args.flags |= abi.MW_SCATTER_ZERO_GAPS
        rows = _output(engine, out, x, num_rows)
        args.out = rows.data_ptr()
        weights = along = None
        if topk_weights is not None:
            _check_weights(engine, routing, topk_weights, (tokens, routing.num_topk))
            shape = (num_rows,) if expanded else (num_rows, routing.num_topk)
            weights = engine.place.empty(shape, torch.float32)
            args.flags |= abi.MW_SCATTER_WEIGHTS
            args.topk_weights, args.out_weights = topk_weights.data_ptr(), weights.data_ptr()
        if extra is not None:
            args.extra_row_bytes = _check_extra(extra, tokens, engine)
            along = engine.place.empty((num_rows, *extra.shape[1:]), extra.dtype)
            args.extra, args.out_extra = extra.data_ptr(), along.data_ptr()
        borrowed = routing, x, topk_weights, extra, rows, weights, along
        engine.refuse_closed()
        engine.may_lead()
        engine.collective(engine.lib.buffer_scatter, args, borrowed)
        return Scattered(rows, weights, along)

    def gather(
        self,
        routing: Routing,
        x: torch.Tensor,
        *,
        topk_weights: torch.Tensor | None = None,
        owners_only: bool = False,
        bias: Sequence[torch.Tensor] = (),
        out: torch.Tensor | None = None,
        expanded: bool = False,
        expert_alignment: int = 1,
        timeout_us: int = -1,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Brings rows back to the tokens that they came from, and adds them up. Collective.

        ``out[t]`` = the biases of t + the rows of t, in order of rank: added in float32, rounded
        once (nearest even). Expanded rows of a token on one rank are first added there, in order of
        k, and rounded to bf16. A token that no rank got has its biases, or 0.

        No gradient comes back through here: that is ``moewire.autograd.gather``.

        Args:
            routing: of this buffer and epoch.
            x: bf16 or float32 [N, H], contiguous; expanded, bf16 [rows, H]. H is a multiple of 8. H
                and the dtype are the same on every rank.
            topk_weights: float32 [N, K], contiguous; expanded, [rows]. They travel home with the
                rows. All ranks give weights or none does; an empty tensor (N = 0) counts as given.
            owners_only: a weight counts only where its selection is on the rank that sends it.
                Expanded rows have no others.
            bias: up to two tensors [T, H] of x's dtype, contiguous, which are added first.
            out: [T, H], contiguous, bf16, or float32 if x is. None: a new tensor of bf16.
            expanded, expert_alignment: as for the scatter that made such rows.
            timeout_us: as for ``make_routing``.

        Returns:
            ``(out, weights)``. ``weights`` is float32 [T, K], each the sum over the ranks that the
            token went to, in order of rank; None without ``topk_weights``.

        Raises:
            StaleHandleError: the routing is of another epoch. Make a new one.
            MoewireError: as for ``make_routing``.
        """
        engine, tokens = self.runtime, _routing.refuse_foreign(self.runtime, routing).num_tokens
        args = abi.mw_gather_args_t(
            size=abi.SIZE_OF[abi.mw_gather_args_t],
            timeout_us=check.timeout(timeout_us),
            slice_us=SLICE_US,
            routing=routing._raw,
        )
        num_rows = _layout(args, routing, expanded, expert_alignment, abi.MW_GATHER_EXPANDED)
        _check_outputs(engine, x, num_rows, expanded)
        args.x, args.hidden = x.data_ptr(), x.shape[1]
        if x.dtype is torch.float32:
            args.flags |= abi.MW_GATHER_FP32_ROWS
        shape = (tokens, args.hidden)
        out = _sums(engine, out, x, shape)
        args.out = out.data_ptr()
        if out.dtype is torch.float32:
            args.flags |= abi.MW_GATHER_FP32_OUT
        if check.boolean("owners_only", owners_only):
            args.flags |= abi.MW_GATHER_OWNERS_ONLY
        biases = _biases(engine, bias, x.dtype, shape)
        for at, one in enumerate(biases):
            args.bias[at] = one.data_ptr()
        weights = None
        if topk_weights is not None:
            given = (num_rows,) if expanded else (num_rows, routing.num_topk)
            _check_weights(engine, routing, topk_weights, given)
            weights = engine.place.empty((tokens, routing.num_topk), torch.float32)
            args.flags |= abi.MW_GATHER_WEIGHTS
            args.topk_weights, args.out_weights = topk_weights.data_ptr(), weights.data_ptr()
        engine.refuse_closed()
        engine.may_lead()
        borrowed = routing, x, topk_weights, biases, out, weights
        engine.collective(engine.lib.buffer_gather, args, borrowed)
        return out, weights


def _layout(
    args: abi.mw_scatter_args_t | abi.mw_gather_args_t,
    routing: Routing,
    expanded: object,
    alignment: int,
    flag: int,
) -> int:
    """Fills in the layout of rows; how many there are."""
    if check.boolean("expanded", expanded):
        args.expert_alignment = check.limited("expert_alignment", alignment)
        args.flags |= flag
        return routing.num_expanded_rows(alignment)
    if check.limited("expert_alignment", alignment) != 1:
        raise check.refuse("expert_alignment", alignment, "1 without expanded")
    return routing.num_rows


def _check_rows(x: torch.Tensor, tokens: int, engine: Engine) -> int:
    """Checks the rows of a scatter; the bytes of each."""
    check.along("x", x, tokens, engine.place)
    return check.row_bytes("x", row_bytes((x.dtype, tuple(x.shape[1:]))))


def _check_extra(extra: torch.Tensor, tokens: int, engine: Engine) -> int:
    check.along("extra", extra, tokens, engine.place)
    size = row_bytes((extra.dtype, tuple(extra.shape[1:])))
    return check.extra_row_bytes("bytes per token of extra", size)


def _check_weights(
    engine: Engine, routing: Routing, weights: torch.Tensor, shape: tuple[int, ...]
) -> None:
    if routing.num_topk == 0:
        allowed = "None, as the routing was made without topk_idx"
        raise check.refuse("topk_weights", "a tensor", allowed)
    check.known("topk_weights", weights, torch.float32, shape, engine.place, engine.quick)


def _output(
    engine: Engine, out: torch.Tensor | None, x: torch.Tensor, num_rows: int
) -> torch.Tensor:
    """Where the rows of a scatter go."""
    row = tuple(x.shape[1:])
    if out is None:
        return engine.place.empty((num_rows, *row), x.dtype)
    check.tensor("out", out, x.dtype, (None, *row), engine.place)
    if len(out) < num_rows:
        raise check.refuse("out", f"{len(out)} rows", f"at least {num_rows}")
    return out if len(out) == num_rows else out[:num_rows]


_SUMMED = (torch.bfloat16, torch.float32)


def _check_outputs(engine: Engine, x: torch.Tensor, num_rows: int, expanded: bool) -> None:
    """Checks the rows of a gather."""
    allowed = _SUMMED[:1] if expanded else _SUMMED
    given = getattr(x, "dtype", None)
    dtype = given if given in allowed else allowed[0]
    assert dtype is not None
    check.tensor("x", x, dtype, (num_rows, None), engine.place, allowed)
    check.hidden(x.shape[1], False)


def _sums(
    engine: Engine, out: torch.Tensor | None, x: torch.Tensor, shape: tuple[int, int]
) -> torch.Tensor:
    """Where the sums of a gather go."""
    if out is None:
        return engine.place.empty(shape, torch.bfloat16)
    allowed = _SUMMED if x.dtype is torch.float32 else _SUMMED[:1]
    given = getattr(out, "dtype", None)
    dtype = given if given in allowed else allowed[0]
    assert dtype is not None
    check.tensor("out", out, dtype, shape, engine.place, allowed)
    return out


def _biases(
    engine: Engine, given: Iterable[torch.Tensor], dtype: torch.dtype, shape: tuple[int, int]
) -> tuple[torch.Tensor, ...]:
    biases = check.several("bias", given)
    if len(biases) > abi.MW_MAX_BIASES:
        raise check.refuse("bias", f"{len(biases)} of them", f"at most {abi.MW_MAX_BIASES}")
    for at, one in enumerate(biases):
        check.known(f"bias[{at}]", one, dtype, shape, engine.place, engine.quick)
    return biases
