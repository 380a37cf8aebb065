"""vLLM's all-to-all over the flat exchange: a token goes once to every rank that it needs.

It replaces vLLM's ``AgRsAll2AllManager``, which sends every token to every rank, on any
platform. Written against vLLM 0.32.0 and run on the CPU; on CUDA it was never run. There each
dispatch and combine waits for the device: the experts need the number of rows, and the step has
to end if a rank was lost. vLLM 0.32.0 does not overlap micro-batches with this manager; it keeps a
handle for each all the same.

Notation: R ranks, E experts, L = E/R local experts, M tokens per rank at most, H hidden size,
T tokens of this rank, K selections per token, N rows that this rank received.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from vllm.config import get_current_vllm_config
from vllm.distributed.device_communicators.all2all import AgRsAll2AllManager
from vllm.v1.worker.ubatching import dbo_current_ubatch_id

from ...errors import InvalidArgument
from .. import _buffers
from . import _lost, _place, _platform, _sizes
from ._flat import FlatExchange, Sent

if TYPE_CHECKING:
    from collections.abc import Sequence


class FlatAll2AllManager(AgRsAll2AllManager):  # type: ignore[misc]
    """One per process; vLLM makes it with its expert-parallel communicator.

    No handle passes through vLLM: the manager keeps what a ``dispatch`` started, for each
    micro-batch, until its ``combine``. Router logits, for experts that route themselves, go the
    stock way.
    """

    def __init__(self, cpu_group: Any, tcp_store_group: Any = None) -> None:
        super().__init__(cpu_group, tcp_store_group)
        config = get_current_vllm_config()
        _sizes.refuse_config(config)
        self._num_experts: int = config.model_config.get_num_experts()
        self._max_tokens: int = config.scheduler_config.max_num_batched_tokens
        self._place = _place.of(self.cpu_group)
        self._lost = _lost.Watch(self.world_size, _platform.tensor_device())
        self._sent: dict[int, Sent] = {}  # by micro-batch

    def dispatch(
        self,
        hidden_states: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        is_sequence_parallel: bool = False,
        extra_tensors: Sequence[torch.Tensor] | None = None,
    ) -> Any:
        """Brings the rows that this rank's experts run. Collective.

        Args:
            hidden_states: bf16 or float32 [T, H], T <= M.
            topk_weights: [T, K].
            topk_ids: [T, K], global, of any integer type.
            is_sequence_parallel: every rank has tokens of its own. Otherwise the ranks of a
                tensor-parallel group have the same ones, which is refused for more than one.
            extra_tensors: up to 4 tensors [T, ...] that travel beside their tokens.

        Returns:
            Rows [N, H], weights [N, K] and global ids [N, K], in the types given, and with
            ``extra_tensors`` a list of those for the N rows. A selection of another rank's expert
            has weight 0, and some other rank's id. Rows may be views of the workspace: they are
            valid until ``combine``.

        Raises:
            PeerLostError: a rank was lost.
            InvalidArgument: ranks of a tensor-parallel group have the same tokens.
        """
        self._refuse_copies_of_tokens(is_sequence_parallel)
        batch = dbo_current_ubatch_id()
        stale = self._sent.pop(batch, None)
        if stale is not None:  # an exception came between its dispatch and combine
            _lost.give_up(stale.handle)
        extra = tuple(extra_tensors or ())
        exchange = self._exchange(hidden_states, topk_ids.shape[1])
        sent = self._sent[batch] = exchange.dispatch(hidden_states, topk_weights, topk_ids, extra)
        self._lost.refuse()
        ids = self._global(sent.topk_idx).to(topk_ids.dtype)
        weights = sent.topk_weights.to(topk_weights.dtype)
        if extra_tensors is None:
            return sent.x, weights, ids
        return sent.x, weights, ids, list(sent.extra)

    def combine(
        self, hidden_states: torch.Tensor, is_sequence_parallel: bool = False
    ) -> torch.Tensor:
        """Brings this rank's tokens back. Collective.

        Args:
            hidden_states: [N, H], for each row of ``dispatch`` the weighted sum of this rank's
                experts. It may be overwritten as soon as the call returns.
            is_sequence_parallel: as for ``dispatch``.

        Returns:
            [T, H], summed over the ranks.

        Raises:
            PeerLostError: a rank was lost.
        """
        sent = self._sent.pop(dbo_current_ubatch_id(), None)
        if sent is None:  # its dispatch went the stock way
            stock: torch.Tensor = super().combine(hidden_states, is_sequence_parallel)
            return stock
        out = sent.exchange.combine(sent, hidden_states, None)
        self._lost.refuse()
        return out

    def combine_into_output(
        self,
        hidden_states: torch.Tensor,
        output: torch.Tensor,
        is_sequence_parallel: bool = False,
    ) -> torch.Tensor:
        """``combine`` into ``output`` [T, H], which is returned."""
        sent = self._sent.pop(dbo_current_ubatch_id(), None)
        if sent is None:
            super().combine_into_output(hidden_states, output, is_sequence_parallel)
            return output
        sent.exchange.combine(sent, hidden_states, output)
        self._lost.refuse()
        return output

    def allocate_combine_input(self, *_: Any, **__: Any) -> None:
        """None: experts write where they like."""
        return

    def destroy(self) -> None:
        """Closes the Buffers of its group, also after a dispatch without ``combine``. Idempotent.

        Raises if a Buffer cannot be closed yet (``_buffers.close_buffers``): call it again.
        """
        while self._sent:
            _lost.give_up(self._sent.popitem()[1].handle)
        try:
            _buffers.close_buffers(self._place)
        finally:
            super().destroy()

    def _exchange(self, x: torch.Tensor, num_topk: int) -> FlatExchange:
        sizes = _sizes.Sizes(
            self.world_size, self._num_experts, self._max_tokens, x.shape[1], num_topk, x.dtype
        )
        return FlatExchange(_sizes.checked(sizes), self._place, self._lost)

    def _global(self, local: torch.Tensor) -> torch.Tensor:
        """Local ids, -1 for other ranks' -> global ids.

        vLLM's kernels index tables with them, so another rank's id replaces -1. With one rank
        there is no -1.
        """
        num_local = self._num_experts // self.world_size
        first = self.rank * num_local
        foreign = (first + num_local) % self._num_experts
        return torch.where(local < 0, foreign, local + first)

    def _refuse_copies_of_tokens(self, is_sequence_parallel: bool) -> None:
        if not is_sequence_parallel and self.tp_group.world_size > 1:
            raise InvalidArgument(
                f"--tensor-parallel-size: {self.tp_group.world_size} without sequence-parallel "
                "experts; 1, or data parallel as well, with MOEWIRE_VLLM=manager"
            )
