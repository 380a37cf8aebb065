"""Packed operations: a token goes once to every expert that it selects."""

from __future__ import annotations

from typing import TypeAlias

import torch

from .._base.numbers import boolean
from .._base.opaque import opaque_methods
from ..event import EventOverlap, Hook, how
from ..handle import Handle, refuse_foreign
from . import combine as _combine
from . import dispatch as _dispatch
from .engine import Engine
from .results import RecvX

Received: TypeAlias = tuple[RecvX, torch.Tensor, Handle, EventOverlap, Hook | None]


@opaque_methods
class PackedCalls:
    """The packed form of a buffer's operations. ``Buffer`` has the notation."""

    runtime: Engine
    _copy_outputs: bool

    def dispatch(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        active_ranks: torch.Tensor | None,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        timeout_us: int,
        use_fp8: bool | None = None,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        *,
        more: bool = False,
        round_scale: bool = False,
        use_ue8m0: bool = False,
        fp32_outputs: bool = False,
        topk_weights: torch.Tensor | None = None,
        pre_reduce: bool = False,
        _wait_ns: torch.Tensor | None = None,  # of DeepEP's names, on CUDA: int64 [R]
    ) -> Received:
        """Sends each token's row to the ranks that own its experts. Collective.

        Args:
            x: bf16 [T, H], contiguous; H a multiple of 128 (fp8) or 8 (bf16); T <= M. No gradient
                comes back to it through here: that is ``moewire.autograd``.
            topk_idx: int64 or int32 [T, K], contiguous, K <= 64; -1 selects nothing.
            active_ranks: int32, at least R entries, contiguous, 1 for active (or any number but
                0); or None for all. Entries of lost ranks are cleared in place. Only the first R
                entries count; the others are left alone.
            num_max_dispatch_tokens_per_rank: M, the same on every rank.
            num_experts: E, a multiple of R, the same on every rank.
            timeout_us: microseconds for each phase, -1 for none.
            use_fp8: cast rows to fp8 e4m3 with one scale per 128 values; None is True.
            async_finish: the returned event finishes the receive phase.
            return_recv_hook: the returned hook finishes the receive phase.
            more: this rank will dispatch again for the same batch. ``handle.peers_have_more`` tells
                every rank whether any rank said so.
            round_scale: with fp8, scales are rounded up to powers of two. The same on every rank.
            use_ue8m0: with round_scale, scales are exponent bytes; H a multiple of 512. The same on
                every rank.
            fp32_outputs: the expert outputs that go to ``combine`` are float32, which takes
                twice their room in the workspace. The same on every rank.
            topk_weights: float32, bf16 or float16 [T, K], contiguous, with ``pre_reduce`` only.
                Copied.
            pre_reduce: the combine of this handle is pre-reduced (see ``combine``): a rank of
                another host sends one row per token back, not one per token and expert. Each
                rank's own choice.

        Returns:
            ``(recv_x, recv_count, handle, event, hook)``:

            - recv_x: bf16 [L, R*M, H], or with fp8 a pair: float8_e4m3fn [L, R*M, H] and
              float32 scales [L, R*M, H/128], column-major (token stride 1); with use_ue8m0
              int32 [L, R*M, H/512], column-major, group g in byte g % 4 of int g // 4.
            - recv_count: int32 [L], rows per local expert; rows from there on are undefined. A rank
              that is lost may leave undefined rows before it, too: it had reserved them, and had
              not stored them yet. No entry of ``layout_range`` covers these rows, and no combine
              reads them.
            - handle: see ``Handle``; keep it as long as recv_x is read.
            - event: ``EventOverlap``; hook: a callable with ``return_recv_hook``, else None.

            recv_x and the handle's src_info are views of the workspace, valid until the handle is
            released; later they hold other numbers. They are ordinary tensors with
            ``copy_outputs=True``, and where autograd would save them (x requires grad).
            Contents are valid only after the hook or event. x and topk_idx may be overwritten as
            soon as the call returns. A hook or event that is dropped before it was used cancels
            the operation, unless the handle is kept: its combine then finishes the receive.

            A rank that dies, or is later than ``timeout_us``, is taken out of the group, without an
            exception. Its entry in ``active_ranks`` becomes 0, in place, exactly when its rows are
            not in the result.

        Raises:
            InvalidArgument: an argument is wrong. Consumes nothing: the call may be repeated.
            BusyError: ``num_slots`` operations are in flight and held, neither combined nor
                released, and this one would overwrite rows of the oldest. Consumes nothing, either.
                A handle that is combined or dropped gives its slot up.
            PeerMismatchError: on every rank, if ranks disagree on M, H, E, dtype, scales or the
                dtype of outputs; the buffer stays usable.
            FencedError: the others took this rank out.
        """
        engine = self.runtime
        topk_idx, topk_weights, stored = engine.selections(topk_idx, topk_weights)
        fp8 = use_fp8 is None or use_fp8
        bits = _dispatch.flags(fp8, more, round_scale, use_ue8m0, fp32_outputs, pre_reduce)
        request = _dispatch.Request(
            x,
            topk_idx,
            active_ranks,
            num_max_dispatch_tokens_per_rank,
            num_experts,
            timeout_us,
            bits | engine.held.flag | stored,
            topk_weights,
        )
        ending = how(async_finish, return_recv_hook)
        results, (event, hook) = engine.dispatch(request, ending, self._copy_outputs, _wait_ns)
        recv_x, recv_count, handle = results
        return recv_x, recv_count, handle, event, hook

    def combine(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        topk_weights: torch.Tensor,
        active_ranks: torch.Tensor | None,
        timeout_us: int,
        handle: Handle,
        zero_copy: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        out: torch.Tensor | None = None,
        *,
        _wait_ns: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, EventOverlap, Hook | None]:
        """Brings expert outputs back and sums them with the routing weights. Collective.

        ``out[t]`` = sum over k, in order of k, of ``topk_weights[t, k]`` times the output row
        of expert ``topk_idx[t, k]``: multiplied and added in float32, rounded once to bf16
        (nearest even). The bits depend on the inputs alone. A token without a live selection
        gives zeros.

        After a dispatch with ``pre_reduce`` each rank that the token went to forms this sum over
        the selections of its own experts, and rounds it to the dtype of x. ``out[t]`` = sum of
        these, in the order in which the token's selections name the ranks first: added in float32,
        rounded once to bf16. The bits depend on the inputs and on the number of ranks, not on where
        ranks are.

        Args:
            x: bf16 [L, R*M, H], or float32 after a dispatch with ``fp32_outputs``; contiguous,
                expert outputs in the positions of the inputs.
            topk_idx: int64 or int32 [T, K] as dispatched; -1 leaves a selection out (not after
                ``pre_reduce``: ``InvalidArgument``).
            topk_weights: float32, bf16 or float16 [T, K], contiguous; used as float32. After
                ``pre_reduce`` those of the dispatch (``InvalidArgument`` names the first that
                differs).
            active_ranks, timeout_us, async_finish, return_recv_hook: as for ``dispatch``.
            handle: of the dispatch. Its receive phase is finished here if its hook has not
                run. A handle may be combined more than once.
            zero_copy: x is what ``get_next_combine_buffer(handle)`` returned (checked).
            out: bf16 [T, H], contiguous; written and returned. None: a new tensor.

        Returns:
            ``(out, event, hook)``. x may be overwritten as soon as the call returns; out
            is complete after the hook or event, and never if that is dropped unused.

        Raises:
            InvalidArgument: an argument is wrong; nothing happened.
            StaleHandleError: the handle was released.
            NotCombinedError: a rank, which the text names, released the operation without combining
                it.
        """
        engine = self.runtime
        refuse_foreign(engine, handle, Handle)
        out = engine.output(out, handle)
        topk_idx, weights, stored = engine.selections(topk_idx, topk_weights)
        request = _combine.Request(
            x,
            topk_idx,
            weights,
            active_ranks,
            timeout_us,
            boolean("zero_copy", zero_copy),
            out,
            stored,
        )
        ending = how(async_finish, return_recv_hook)
        event, hook = engine.combine(handle, request, ending, _wait_ns)
        return out, event, hook
