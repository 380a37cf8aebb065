"""Flat operations: a token goes once to every rank that owns some of its experts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .. import _abi as abi
from .._base import check
from .._base.opaque import opaque_methods
from .._native.runtime import size_hint
from ..event import EventOverlap, Hook, how
from ..handle import refuse_foreign
from . import combine as _combine
from . import dispatch as _dispatch
from .engine import Engine
from .flat_results import FlatHandle, FlatReceived


@opaque_methods
class FlatCalls:
    """The flat form of a buffer's operations. ``Buffer`` has the notation."""

    runtime: Engine
    _copy_outputs: bool

    @staticmethod
    def get_flat_buffer_size_hint(
        num_max_dispatch_tokens_per_rank: int,
        hidden: int,
        num_ranks: int,
        num_topk: int,
        *,
        extra_row_bytes: Sequence[int] = (),
        num_slots: int = 2,
        fp32_outputs: bool = False,
    ) -> int:
        """Bytes to construct with for flat operations up to this shape, in bf16 or fp8.

        If a buffer serves packed operations as well, construct it with the larger of both hints.

        Args:
            num_max_dispatch_tokens_per_rank: M.
            hidden: H.
            num_ranks: R.
            num_topk: K.
            extra_row_bytes: bytes per token of each tensor of ``extra``.
            num_slots: as for ``Buffer``.
            fp32_outputs: with room for dispatches that ask for ``fp32_outputs``.

        Returns:
            The size for ``num_ep_buffer_bytes``.

        Raises:
            InvalidArgument: a number is out of its bounds.
        """
        ranks = check.limited("num_ranks", num_ranks)
        fp32 = abi.MW_SHAPE_FP32_OUTPUTS if check.boolean("fp32_outputs", fp32_outputs) else 0
        shape = abi.mw_shape_t(
            num_max_tokens_per_rank=check.tokens_per_rank(num_max_dispatch_tokens_per_rank),
            hidden=check.limited("hidden", hidden),
            num_ranks=ranks,
            num_experts=ranks,  # flat rows need the same room for any number
            num_slots=check.limited("num_slots", num_slots),
            num_topk=check.integer("num_topk", num_topk, 0, abi.LIMITS["num_topk"][1]),
            flags=abi.MW_SHAPE_FLAT | fp32,
        )
        check.num_extras("extra_row_bytes", len(extra_row_bytes))
        for at, size in enumerate(extra_row_bytes):
            shape.extra_row_bytes[at] = check.extra_row_bytes(f"extra_row_bytes[{at}]", size)
        return size_hint(shape)

    def dispatch_flat(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor | None,
        topk_weights: torch.Tensor | None,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        *,
        extra: Sequence[torch.Tensor] = (),
        active_ranks: torch.Tensor | None = None,
        timeout_us: int = -1,
        use_fp8: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        more: bool = False,
        round_scale: bool = False,
        use_ue8m0: bool = False,
        fp32_outputs: bool = False,
        handle: FlatHandle | None = None,
    ) -> FlatReceived:
        """Sends each token once to every rank that owns some of its experts. Collective.

        There is one block of rows per rank, not one per expert. This rank runs its experts on
        the rows, weights and adds up their outputs, and gives ``combine_flat`` one output row
        per row. Flat and packed operations may follow one another on one buffer.

        The dispatch is sent when all ranks have begun it (as with ``deterministic=True``). So
        each rank needs a thread of its own, and a call with a hook waits until then.

        If one of the latest ``num_slots`` operations had the same routing among the same ranks, its
        plan (which row goes where) is used again, with ``handle`` or without.

        Args:
            x, num_max_dispatch_tokens_per_rank, num_experts, active_ranks, timeout_us, use_fp8,
                async_finish, return_recv_hook, more, round_scale, use_ue8m0, fp32_outputs: as
                for ``dispatch``.
            topk_idx: int64 or int32 [T, K], contiguous, the same K <= 64 on every rank; -1 selects
                nothing. Several selected experts of one rank make one row.
            topk_weights: float32, bf16 or float16 [T, K], contiguous; they arrive as float32.
            extra: up to 4 tensors [T, ...] of any dtype, contiguous, at most 65535 bytes per
                token: scales or adapter numbers, for example. They arrive as ``recv_extra``. The
                bytes per token are the same on every rank.
            handle: of an earlier flat dispatch of this buffer, released or not, of this epoch
                or an earlier one. Its routing is used again, for as many tokens and experts.
                topk_idx and topk_weights are None then, do not travel, and do not come out;
                rows come in the same order as long as the same ranks take part. All ranks pass
                a handle, or none does.

        Returns:
            A ``FlatReceived``. How long results are valid, and what a lost rank does: as for
            ``dispatch``.

            Rows that a lost rank had reserved and not finished are among the N: ``layout_range``
            counts none of them, and no combine reads them. They have ids -1 and weights 0, unless
            that rank was frozen, wakes up and stores its own. With ``handle`` no ids tell them
            apart.

            On CUDA the call only launches, also with a hook, and also with ``copy_outputs``, where
            the copies have room for R*M rows. Asking for N, or for a tensor of N rows, waits for
            the stream of the dispatch; this is refused while a stream is captured. While a graph is
            recorded N is R*M, and ``handle.layout_range`` says at each replay which rows there are.

        Raises:
            BusyError: ``num_slots`` operations, packed or flat, are in flight and held: neither
                combined nor released. This one would overwrite rows of the oldest. Nothing was
                sent. A handle that is combined, released or dropped gives its slot up.
            MoewireError: as for ``dispatch``.
        """
        engine = self.runtime
        if handle is not None:
            _check_cached(engine, handle, topk_idx, topk_weights, x, num_experts)
            topk_idx = handle._topk_idx
        ids, weights, stored = engine.selections(topk_idx, topk_weights)
        bits = _dispatch.flags(use_fp8, more, round_scale, use_ue8m0, fp32_outputs)
        bits |= abi.MW_DISPATCH_FLAT | (abi.MW_DISPATCH_NO_ROUTING if handle is not None else 0)
        request = _dispatch.Request(
            x,
            ids,
            active_ranks,
            num_max_dispatch_tokens_per_rank,
            num_experts,
            timeout_us,
            bits | engine.held.flag | stored,
            weights,
            _dispatch.several(extra),
        )
        ending = how(async_finish, return_recv_hook)
        (held, rows), (event, hook) = engine.dispatch(request, ending, self._copy_outputs)
        return FlatReceived(held, rows, event, hook)

    def combine_flat(
        self,
        y: torch.Tensor,
        handle: FlatHandle,
        *,
        active_ranks: torch.Tensor | None = None,
        timeout_us: int = -1,
        zero_copy: bool = False,
        out: torch.Tensor | None = None,
        async_finish: bool = False,
        return_recv_hook: bool = False,
    ) -> tuple[torch.Tensor, EventOverlap, Hook | None]:
        """Brings the ranks' sums back and adds them up. Collective.

        ``out[t]`` = sum over the ranks that token t went to, in order of rank, of their rows of
        y for it: added in float32, rounded once to bf16 (nearest even). A token that went
        nowhere gives zeros.

        Args:
            y: bf16 [N, H], or float32 after a dispatch with ``fp32_outputs``; contiguous, rows
                as received, weighted.
            handle: of the dispatch; finished here if its hook has not run.
            zero_copy: y is what ``get_next_combine_buffer(handle)`` returned (checked).
            active_ranks, timeout_us, out, async_finish, return_recv_hook: as for ``combine``.

        Returns:
            ``(out, event, hook)``, out bf16 [T, H], as ``combine`` does.

        Raises:
            MoewireError: as for ``combine``.
        """
        engine = self.runtime
        refuse_foreign(engine, handle, FlatHandle)
        out = engine.output(out, handle)
        request = _combine.Request(
            y,
            None,
            None,
            active_ranks,
            timeout_us,
            check.boolean("zero_copy", zero_copy),
            out,
        )
        ending = how(async_finish, return_recv_hook)
        event, hook = engine.combine(handle, request, ending)
        return out, event, hook


def _check_cached(
    engine: Engine,
    handle: FlatHandle,
    topk_idx: object,
    topk_weights: object,
    x: torch.Tensor,
    num_experts: int,
) -> None:
    refuse_foreign(engine, handle, FlatHandle)
    if topk_idx is not None or topk_weights is not None:
        raise check.refuse("topk_idx and topk_weights", "tensors", "None with a handle")
    if num_experts != handle._plan.num_experts:
        raise check.refuse("num_experts", num_experts, f"the handle's {handle._plan.num_experts}")
    check.tensor("x", x, torch.bfloat16, (handle._num_tokens, None), engine.place)
