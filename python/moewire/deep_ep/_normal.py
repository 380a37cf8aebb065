"""DeepEP's normal mode: dispatch and combine over routings, which handles hold."""

from __future__ import annotations

from typing import TypeAlias

import torch

from .. import _abi as abi
from .._base import check
from .._base.opaque import opaque_methods
from ..event import EventOverlap
from . import _routed
from ._config import Config
from ._events import begin, ended
from ._gpu import Gpu
from ._handle import DispatchHandle, checked
from ._layout import layout_of
from ._tokens import Bias, Rows, Tokens, biases_of, padded, tokens_of

Layout: TypeAlias = tuple[
    torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor, EventOverlap
]
Received: TypeAlias = tuple[
    Rows,
    torch.Tensor | None,
    torch.Tensor | None,
    list[int] | None,
    DispatchHandle | None,
    EventOverlap,
]


@opaque_methods
class NormalMode(Gpu):
    """A token goes once to every rank that has some of its experts.

    T tokens of hidden size H on this rank, K selections each, E experts, L = E/R on each of R
    ranks; N rows received. T has no bound and may differ between ranks, T = 0 and N = 0 included.
    Results are ordinary tensors, which the caller may keep and write to.
    """

    timeout_us: int

    def get_dispatch_layout(
        self,
        topk_idx: torch.Tensor,
        num_experts: int,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> Layout:
        """Counts where this rank's tokens go. Local: no other rank takes part.

        Args:
            topk_idx: int64 [T, K], contiguous; -1 selects nothing.
            num_experts: E, a multiple of R.
            previous_event, async_finish, allocate_on_comm_stream: as for ``dispatch``.

        Returns:
            ``(num_tokens_per_rank, num_tokens_per_rdma_rank, num_tokens_per_expert,
            is_token_in_rank, event)``: int32 [R], each token once per rank; int32 [R/8], rounded
            up, or None for up to 8 ranks; int32 [E], each selection; bool [T, R].

        Raises:
            InvalidArgument: an argument is wrong; the text names it.
        """
        begin(previous_event, async_finish, allocate_on_comm_stream)
        layout = layout_of(topk_idx, num_experts, self._buffer.group_size, self._place)
        return (*layout, ended(async_finish))

    def dispatch(
        self,
        x: Rows,
        handle: tuple[object, ...] | None = None,
        num_tokens_per_rank: torch.Tensor | None = None,
        num_tokens_per_rdma_rank: torch.Tensor | None = None,
        is_token_in_rank: torch.Tensor | None = None,
        num_tokens_per_expert: torch.Tensor | None = None,
        topk_idx: torch.Tensor | None = None,
        topk_weights: torch.Tensor | None = None,
        expert_alignment: int = 1,
        num_worst_tokens: int = 0,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> Received:
        """Sends each token to its ranks. Collective; returns when the rows are there.

        Args:
            x: [T, H] of any dtype, contiguous, rows of a multiple of 16 bytes; or ``(x, scales)``
                with 1 byte per element, and scales float32 or int32 [T, S], any strides.
            handle: of an earlier dispatch: its routing is used again, for rows of any H and
                dtype. The arguments that say where tokens go are not given then.
            num_tokens_per_rank: int32 [R]; has to agree with ``is_token_in_rank``.
            num_tokens_per_rdma_rank: accepted and not used.
            is_token_in_rank: bool [T, R]: where each token goes, whatever ``topk_idx`` says.
            num_tokens_per_expert: int32 [E]: what the receivers' counts are summed from.
            topk_idx: int64 [T, K], contiguous; -1 selects nothing; an expert may come twice.
            topk_weights: float32 [T, K]. Both or neither, alike on all ranks.
            expert_alignment: what the counts are rounded up to. There are no more rows for it.
            num_worst_tokens: 0, or the number of rows of the results, at least N. Needs topk_idx.
            config: accepted and not used.
            previous_event: waited for first.
            async_finish: returns an event. It has come to pass by then.
            allocate_on_comm_stream: needs both of these, as upstream.

        Returns:
            ``(recv_x, recv_topk_idx, recv_topk_weights, num_recv_tokens_per_expert_list, handle,
            event)``. Rows in order of source rank and token: recv_x [N, H], or
            ``(recv_x, recv_scales)`` with contiguous scales [N, S]; int64 [N, K], local ids, -1
            where a selection is of another rank; float32 [N, K], 0 there; L counts of selections.
            Without topk_idx the ids and weights are None, not the list.

            With ``num_worst_tokens`` the list is empty. Ids behind the N rows are -1, and all else
            there is not initialised. With ``handle`` only recv_x and the event are not None.

        Raises:
            InvalidArgument: an argument is wrong; the text names it. Nothing was sent, unless
                more than ``num_worst_tokens`` rows came.
            PeerMismatchError: ranks disagree about E, K, the size of rows, or the call.
            StaleHandleError: the handle is of an earlier epoch.
            UnsupportedError: on CUDA: the current stream is captured.
            MoewireError: as for ``moewire.Buffer.scatter``.
        """
        buffer = self._buffer
        # Before scales are copied, and counts are compared.
        begin(previous_event, async_finish, allocate_on_comm_stream)
        tokens = tokens_of(x, self._place)
        if handle is not None:
            _routed.refuse_routing(topk_idx, topk_weights)
            made = _for_tokens(checked(handle), tokens, num_worst_tokens)
            rows, _ = self._scatter(made, tokens, None)
            return rows, None, None, None, None, ended(async_finish)
        alignment = check.limited("expert_alignment", expert_alignment)
        worst = _worst(num_worst_tokens, topk_idx)
        given = _routed.routed(
            len(tokens.x),
            buffer.group_size,
            self._place,
            num_tokens_per_rank=num_tokens_per_rank,
            is_token_in_rank=is_token_in_rank,
            num_tokens_per_expert=num_tokens_per_expert,
            topk_idx=topk_idx,
            topk_weights=topk_weights,
        )
        made = self._handle_of(given, worst)
        rows, weights = self._scatter(made, tokens, given.topk_weights)
        ids = None if given.topk_idx is None else self._ids(made)
        counts = [] if worst else [-(-n // alignment) * alignment for n in made.routing.counts]
        return rows, ids, weights, counts, made, ended(async_finish)

    def combine(
        self,
        x: torch.Tensor,
        handle: tuple[object, ...],
        topk_weights: torch.Tensor | None = None,
        bias: Bias = None,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None, EventOverlap]:
        """Brings rows back to their tokens, and adds them up. Collective.

        ``combined_x[t]`` = biases + the rows of t in order of rank, added in float32, rounded
        once to bf16. Nothing is multiplied by weights. A token that went nowhere has its biases,
        or 0.

        Args:
            x: bf16 [N, H], contiguous; as many rows as the dispatch's results have.
            handle: of the dispatch; it may be used again.
            topk_weights: float32 [N, K]; each is added up over the ranks of its token. Given on
                all ranks or on none.
            bias: bf16 [T, H], or two of them.
            config: accepted and not used.
            previous_event, async_finish, allocate_on_comm_stream: as for ``dispatch``.

        Returns:
            ``(combined_x, combined_topk_weights, event)``: bf16 [T, H]; float32 [T, K] or None.

        Raises:
            MoewireError: as for ``dispatch``.
        """
        buffer = self._buffer
        made = checked(handle)
        check.tensor("x", x, torch.bfloat16, (made.num_rows, None), self._place)
        num_rows, weights = made.routing.num_rows, None
        if topk_weights is not None:
            shape = made.num_rows, None
            check.tensor("topk_weights", topk_weights, torch.float32, shape, self._place)
            weights = topk_weights[:num_rows]
        begin(previous_event, async_finish, allocate_on_comm_stream)
        out, home = buffer.gather(
            made.routing,
            x[:num_rows],
            topk_weights=weights,
            bias=biases_of(bias),
            timeout_us=self.timeout_us,
        )
        return out, home, ended(async_finish)

    def _handle_of(self, given: _routed.Routed, worst: int) -> DispatchHandle:
        routing = self._buffer.make_routing(
            given.topk_idx,
            given.num_experts,
            is_token_in_rank=given.is_token_in_rank,
            num_tokens_per_expert=given.num_tokens_per_expert,
            timeout_us=self.timeout_us,
        )
        return DispatchHandle.of(routing, self._buffer.rank, worst)

    def _scatter(
        self, made: DispatchHandle, tokens: Tokens, topk_weights: torch.Tensor | None
    ) -> tuple[Rows, torch.Tensor | None]:
        """The rows and weights of a dispatch, in a number of rows that the handle says."""
        num_rows, have = made.routing.num_rows, made.num_rows
        whole = self._place.empty((max(num_rows, have), tokens.x.shape[1]), tokens.x.dtype)
        got = self._buffer.scatter(
            made.routing,
            tokens.x,
            topk_weights=topk_weights,
            extra=tokens.scales,
            out=whole[:num_rows],
            timeout_us=self.timeout_us,
        )
        if num_rows > have:  # only now: the other ranks had to get their rows
            raise check.refuse("num_worst_tokens", have, f"at least the {num_rows} rows that came")
        weights = None if topk_weights is None else padded(got.weights, have, self._place)
        scales = None if tokens.scales is None else padded(got.extra, have, self._place)
        return tokens.with_rows(whole, scales), weights

    def _ids(self, made: DispatchHandle) -> torch.Tensor:
        return padded(made.routing.recv_topk_idx(), made.num_rows, self._place, -1)


_MOST_ROWS = abi.LIMITS["num_tokens"][1]


def _worst(num_worst_tokens: int, topk_idx: torch.Tensor | None) -> int:
    worst = check.integer("num_worst_tokens", num_worst_tokens, 0, _MOST_ROWS)
    if worst and topk_idx is None:
        raise check.refuse("num_worst_tokens", f"{worst} without topk_idx", "0 without topk_idx")
    return worst


def _for_tokens(made: DispatchHandle, tokens: Tokens, num_worst_tokens: object) -> DispatchHandle:
    """A handle that fits what is to be sent."""
    num_tokens = made.routing.num_tokens
    if len(tokens.x) != num_tokens:
        allowed = f"the {num_tokens} of the handle"
        raise check.refuse("x", f"{len(tokens.x)} tokens", allowed)
    if num_worst_tokens not in (0, made.num_rows):
        raise check.refuse(
            "num_worst_tokens", num_worst_tokens, f"0 or the handle's {made.num_rows}"
        )
    return made
