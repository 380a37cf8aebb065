"""DeepEP's ``ElasticBuffer``, the second version of its interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .. import _abi as abi
from .._base import check
from .._base.opaque import opaque_methods
from .._cuda import torch_cuda
from ._elastic_calls import NUM_SMS, ElasticCalls
from ._events import EventHandle
from ._shared_core import SharedCore

if TYPE_CHECKING:
    import torch.distributed as dist

_MIB = 1 << 20
_REGION = 2 * _MIB
_NUM_SLOTS = 2
# Rows go in rounds, so a slot for more tokens of each rank saves nothing that can be measured.
_MOST_TOKENS_PER_ROUND = 512
_MOST_TOPK = 32
_EXPERIMENTS = {"engram", "pp", "agrs"}  # words of their names


@opaque_methods
class ElasticBuffer(ElasticCalls):
    """DeepEP's communication buffer, version 2, over routings. Construction is collective.

    Notation as in ``moewire.Buffer``: R ranks, E experts, L = E/R, T tokens of hidden size H on
    this rank, K selections per token, N rows received. All buffers of one process group share one
    workspace, so there may be one per layer.

    Args:
        group: any ``torch.distributed`` process group; gloo will do.
        num_bytes: kept, at least ``get_buffer_size_hint``, for clients that compare the two. The
            workspace has a size of its own: rows go in rounds over it, whatever their number.
        num_max_tokens_per_rank: M, for calls that do not give it.
        hidden, num_topk: what the workspace is for; 0: 7168 and 32. Alike on all ranks.
        deterministic: accepted; rows always lie in order of rank and token.
        allow_multiple_reduction: False: the rows of expanded tokens are added up in float32 and
            rounded once, at the source. Such combines take no weights.
        num_gpu_timeout_secs: bounds each wait of each call for other ranks.
        explicitly_destroy: allows ``destroy()``.
        use_fp8_dispatch, num_cpu_bytes, allow_hybrid_mode, prefer_overlap_with_compute, sl_idx,
            num_allocated_qps, num_cpu_timeout_secs: accepted and not used.
        device: as for ``moewire.deep_ep.Buffer``.

    Raises:
        InvalidArgument: an argument is wrong; the text names it.
        MoewireError: as for ``moewire.Buffer``.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        num_bytes: int | None = None,
        num_cpu_bytes: int = 0,
        num_max_tokens_per_rank: int = 0,
        hidden: int = 0,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        deterministic: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
        prefer_overlap_with_compute: bool = True,
        sl_idx: int = 3,
        num_allocated_qps: int = 0,
        num_cpu_timeout_secs: int = 300,
        num_gpu_timeout_secs: int = 100,
        explicitly_destroy: bool = False,
        *,
        device: str | torch.device | None = None,
    ) -> None:
        hint = self.get_buffer_size_hint(
            group, num_max_tokens_per_rank, hidden, num_topk, use_fp8_dispatch
        )
        if num_bytes is not None:
            check.limited("num_bytes", num_bytes)
        seconds = check.integer("num_gpu_timeout_secs", num_gpu_timeout_secs, 1, 1 << 31)
        self.num_bytes = max(num_bytes or 0, hint)
        self.num_max_tokens_per_rank = num_max_tokens_per_rank
        self.num_allocated_qps = num_allocated_qps
        self.deterministic = bool(deterministic)
        self.allow_hybrid_mode = bool(allow_hybrid_mode)
        self.allow_multiple_reduction = bool(allow_multiple_reduction)
        self.prefer_overlap_with_compute = bool(prefer_overlap_with_compute)
        self.explicitly_destroy = bool(explicitly_destroy)
        self.timeout_us = seconds * 1_000_000
        self.group = group
        # Ranks agree about the workspace, and need not agree about M.
        room = self.get_buffer_size_hint(group, 0, hidden, num_topk)
        self._core: SharedCore | None = SharedCore(group, room, torch_cuda.chosen(device))
        self._place = self._core.buffer.runtime.place
        self.rank_idx = self._core.buffer.rank
        self.num_ranks = self._core.buffer.group_size
        # One level, so every rank is a neighbour.
        self.num_scaleout_ranks = self.num_rdma_ranks = 1
        self.num_scaleup_ranks = self.num_nvlink_ranks = self.num_ranks
        self.scaleout_rank_idx, self.scaleup_rank_idx = 0, self.rank_idx

    @staticmethod
    def get_buffer_size_hint(
        group: dist.ProcessGroup,
        num_max_tokens_per_rank: int,
        hidden: int,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
    ) -> int:
        """Bytes for ``num_bytes``: address space for two rounds.

        Args:
            group: its size counts.
            num_max_tokens_per_rank: M.
            hidden: H.
            num_topk: K; 0: the most.
            use_fp8_dispatch, allow_hybrid_mode, allow_multiple_reduction: they make no difference:
                a combine sends bf16.

        Returns:
            A multiple of 2 MiB.

        Raises:
            InvalidArgument: a number is out of its bounds.
        """
        ranks: int = group.size()
        tokens = check.integer("num_max_tokens_per_rank", num_max_tokens_per_rank, 0, 1 << 31)
        width = check.integer("hidden", hidden, 0, abi.LIMITS["hidden"][1]) or 7168
        topk = check.integer("num_topk", num_topk, 0, abi.LIMITS["num_topk"][1]) or _MOST_TOPK
        row = 2 * width + 4 * topk + 1024  # scales, and what a row costs besides
        rows = ranks * max(1, min(tokens or _MOST_TOKENS_PER_ROUND, _MOST_TOKENS_PER_ROUND))
        slot = -(-rows * row // _REGION) * _REGION + 4 * _REGION
        return _NUM_SLOTS * max(slot, 16 * _MIB)

    @staticmethod
    def capture() -> EventHandle:
        """Marks the present end of torch's current CUDA stream. On a CPU all work is done.

        Returns:
            An event for ``previous_event``; unlike ``Buffer.capture()`` it is no ``EventOverlap``.
        """
        return EventHandle()

    def get_comm_stream(self) -> Any:
        """The stream of operations.

        Returns:
            torch's object. On a CPU, the CPU's one stream.
        """
        return self._shared().runtime.side_stream()

    def get_logical_domain_size(self) -> tuple[int, int]:
        """Hosts and ranks of each, as rows travel: one level, so 1 and R."""
        return self.num_scaleout_ranks, self.num_scaleup_ranks

    def get_physical_domain_size(self) -> tuple[int, int]:
        """As ``get_logical_domain_size``."""
        return self.num_rdma_ranks, self.num_nvlink_ranks

    def get_theoretical_num_sms(
        self, num_experts: int, num_topk: int, *args: object, **kwargs: object
    ) -> int:
        """An even number; nothing here uses GPU cores.

        Args:
            num_experts, num_topk, args, kwargs: they make no difference.

        Returns:
            The same number always.
        """
        return NUM_SMS

    def get_theoretical_num_qps(self, num_sms: int) -> int:
        """``num_sms + 1``; there are no queue pairs to choose.

        Args:
            num_sms: of the call.

        Returns:
            The number.
        """
        return check.integer("num_sms", num_sms, 0, 1 << 16) + 1

    def barrier(
        self, use_comm_stream: bool = True, with_cpu_sync: bool = False, sequential: bool = True
    ) -> None:
        """Waits for all ranks. Collective.

        Args:
            use_comm_stream, with_cpu_sync, sequential: accepted; the caller waits.

        Raises:
            PeerLostError: a rank did not come.
        """
        nothing = self._place.empty((0, 1), torch.int64)
        self._shared().make_routing(nothing, self.num_ranks, timeout_us=self.timeout_us)

    def destroy(self) -> None:
        """Gives this buffer up; the group's last one leaves the group. Idempotent.

        Raises:
            InvalidArgument: ``explicitly_destroy`` was False at construction.
        """
        if not self.explicitly_destroy:
            raise check.refuse("explicitly_destroy", "False at construction", "True to destroy")
        if self._core is not None:
            self._core.close()
        self._core = None

    def __getattr__(self, name: str) -> Any:
        if name == "all_gather" or not _EXPERIMENTS.isdisjoint(name.split("_")):
            raise AttributeError(
                f"moewire.deep_ep.ElasticBuffer has no {name}: it is an experiment of DeepEP's"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
