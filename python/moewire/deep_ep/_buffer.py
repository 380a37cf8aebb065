"""DeepEP's ``Buffer``: its construction, and the low-latency mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .. import buffer as core
from .._base import check
from .._base.opaque import opaque_methods
from .._config import device as _gpu_config
from .._cuda import torch_cuda
from ..errors import UnsupportedError
from ..event import EventOverlap, Hook
from ..handle import Handle
from . import _events
from ._mask import mask_of
from ._normal import NormalMode

if TYPE_CHECKING:
    import torch.distributed as dist

    from .._native.runtime import Runtime

# Upstream has no deadline per call, but fails after 2e11 clock cycles, which is about as long.
TIMEOUT_US = 100_000_000
# A buffer on CUDA needs a size. Rows of the normal mode go in rounds: of 270 tokens from each of
# eight ranks if a row has 14 KiB.
_NORMAL_BYTES = 128 << 20


class _Core(core.Buffer):
    """A buffer with upstream's rule about operations that are held."""

    _overwrites_held = True


@opaque_methods
class Buffer(NormalMode):
    """DeepEP's communication buffer over a ``moewire.Buffer``. Construction is collective.

    Notation as in ``moewire.Buffer``: R ranks, E experts, L = E/R, T <= M tokens of hidden
    size H on this rank, K selections per token.

    Args:
        group: any ``torch.distributed`` process group; gloo will do.
        num_nvl_bytes: kept for clients that compare it with a hint; nothing is allocated for it.
        num_rdma_bytes: from ``get_low_latency_rdma_size_hint``; 0: sized by the first dispatch
            (on CUDA refused with low_latency_mode). Give it if both modes are used: a first call
            of the normal mode takes less. Without low_latency_mode it is only kept.
        low_latency_mode: must be True for the low-latency methods, as upstream. The methods of
            the normal mode are there in either case.
        num_qps_per_rank, allow_nvlink_for_low_latency_mode, allow_mnnvl: accepted; there are no
            queue pairs and no NVLink.
        explicitly_destroy: allows ``destroy()``. Without it, dropping the buffer leaves the group.
        enable_shrink: keeps a rank mask: lost ranks are masked. Without it they are errors.
        comm: accepted and not used; ``group`` is needed.
        use_fabric: accepted. It comes from a branch of DeepEP; SGLang passes it where GPUs have a
            fabric.
        device: where all tensors lie: "cuda", "cuda:N", "cpu" or a ``torch.device``, the same kind
            on all ranks; None: torch's current CUDA device, or the CPU where there is none.

    Raises:
        InvalidArgument: an argument is wrong; the text names it.
        MoewireError: as for ``moewire.Buffer``.

    As upstream, and unlike ``moewire.Buffer``, a third dispatch takes the slot of the first
    operation if its handle is held and was not combined: it overwrites the rows. The logger
    ``moewire`` warns of that once.

    ``timeout_us`` (100 s, may be set) bounds each phase of each call. On CUDA
    (docs/cuda.md) a call launches and returns, as upstream's does.
    """

    nvshmem_qp_depth = 1024  # read by clients

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        num_nvl_bytes: int = 0,
        num_rdma_bytes: int = 0,
        low_latency_mode: bool = False,
        num_qps_per_rank: int = 24,
        allow_nvlink_for_low_latency_mode: bool = True,
        allow_mnnvl: bool = False,
        explicitly_destroy: bool = False,
        enable_shrink: bool = False,
        comm: object = None,
        *,
        use_fabric: bool = False,
        device: str | torch.device | None = None,
    ) -> None:
        if group is None:
            raise check.refuse("group", "None", "a process group (comm is not supported)")
        self.num_nvl_bytes = check.limited("num_nvl_bytes", num_nvl_bytes, "num_bytes")
        self.num_rdma_bytes = check.limited("num_rdma_bytes", num_rdma_bytes, "num_bytes")
        device = torch_cuda.chosen(device)
        num_bytes = self._num_bytes(device, bool(low_latency_mode))
        self._buffer = _Core(group, num_bytes, device=device)
        self.runtime: Runtime | None = self._buffer.runtime
        self._place = self.runtime.place
        self.group = group
        self.rank = self._buffer.rank
        self.group_size = self._buffer.group_size
        self.low_latency_mode = bool(low_latency_mode)
        self.explicitly_destroy = bool(explicitly_destroy)
        self.enable_shrink = bool(enable_shrink)
        self.timeout_us = TIMEOUT_US
        self._mask = mask_of(self._buffer, self.enable_shrink)

    def _num_bytes(self, device: str | torch.device | None, low_latency: bool) -> int:
        """The size of the workspace. Rows of the normal mode go in rounds: any size will do."""
        if low_latency:
            hint = "get_low_latency_rdma_size_hint"
            _gpu_config.refuse_unsized(device, "num_rdma_bytes", self.num_rdma_bytes, hint)
            return self.num_rdma_bytes
        return _NORMAL_BYTES if _gpu_config.parsed(device)[0] == "cuda" else 0

    @staticmethod
    def get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
    ) -> int:
        """Bytes for ``num_rdma_bytes``: address space for two operations.

        Args:
            num_max_dispatch_tokens_per_rank: M.
            hidden: H.
            num_ranks: R.
            num_experts: E.

        Returns:
            A multiple of 128.

        Raises:
            InvalidArgument: a number is out of its bounds.
        """
        return core.Buffer.get_ep_buffer_size_hint(
            num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts
        )

    def low_latency_dispatch(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        cumulative_local_expert_recv_stats: torch.Tensor | None = None,
        dispatch_wait_recv_cost_stats: torch.Tensor | None = None,
        use_fp8: bool = True,
        round_scale: bool = False,
        use_ue8m0: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        *,
        use_nvfp4: bool = False,
        x_global_scale: torch.Tensor | None = None,
    ) -> core.Received:
        """``moewire.Buffer.dispatch`` by DeepEP's arguments; the results are described there.

        Args:
            cumulative_local_expert_recv_stats: int32 [L]; the rows of each local expert are
                added when they have arrived.
            dispatch_wait_recv_cost_stats: int64 [R]; the time that the call and its hook or
                event waited for each rank is added, in nanoseconds. On CUDA the device adds it,
                when the operation's stream comes to it (not with ``MOEWIRE_RECORD=0``).
            use_fp8: round_scale and use_ue8m0 have no meaning without it.
            use_nvfp4: must be False; x_global_scale is ignored then.
            x, topk_idx, num_max_dispatch_tokens_per_rank, num_experts, round_scale, use_ue8m0,
                async_finish, return_recv_hook: as for ``moewire.Buffer.dispatch``.

        Returns:
            ``(recv_x or (recv_x, scales), recv_count, handle, event, hook)``.

        Raises:
            UnsupportedError: ``use_nvfp4`` is True.
            PeerLostError: the result lacks a rank, and ``enable_shrink`` is False.
            MoewireError: as for ``moewire.Buffer.dispatch``.
        """
        if use_nvfp4:
            raise UnsupportedError("use_nvfp4: Moewire sends bf16 or fp8; leave it False")
        buffer = self._low_latency("low_latency_dispatch")
        experts = check.experts(num_experts, self.group_size)
        local = experts // self.group_size
        _events.check_counts(cumulative_local_expert_recv_stats, local, self._place)
        watch = _events.Watch(
            buffer, self._mask, "dispatch_wait_recv_cost_stats", dispatch_wait_recv_cost_stats
        )
        self._mask.look()
        with watch:
            recv_x, recv_count, handle, event, hook = buffer.dispatch(
                x,
                topk_idx,
                self._mask.active_ranks,
                num_max_dispatch_tokens_per_rank,
                num_experts,
                self.timeout_us,
                use_fp8,
                async_finish,
                return_recv_hook,
                round_scale=round_scale if use_fp8 else False,
                use_ue8m0=use_ue8m0 if use_fp8 else False,
                _wait_ns=watch.on_device,
            )
        _events.add_counts_when_done(cumulative_local_expert_recv_stats, handle, event)
        return recv_x, recv_count, handle, *watch.around(event, hook)

    def low_latency_combine(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        topk_weights: torch.Tensor,
        handle: Handle,
        use_logfmt: bool = False,
        zero_copy: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        out: torch.Tensor | None = None,
        combine_wait_recv_cost_stats: torch.Tensor | None = None,
        *,
        overlap: bool = False,
        packed_recv_count: torch.Tensor | None = None,
        comp_signal: torch.Tensor | None = None,
        block_m: int = 64,
        threshold: int = 0,
        num_sms: int | None = None,
        src_signals: torch.Tensor | None = None,
        src_signal_expect_value: int = 0,
    ) -> tuple[torch.Tensor, EventOverlap, Hook | None]:
        """``moewire.Buffer.combine`` by DeepEP's arguments; the result is described there.

        Args:
            use_logfmt: accepted, not with zero_copy. Results are read from shared memory
                uncompressed, so the sum is the exact one.
            combine_wait_recv_cost_stats: int64 [R], as for the dispatch.
            overlap: must be False: x is read at once, so it has to be complete. The arguments
                after it belong to it and are ignored.
            x, topk_idx, topk_weights, handle, zero_copy, async_finish, return_recv_hook, out: as
                for ``moewire.Buffer.combine``.

        Returns:
            ``(out, event, hook)``.

        Raises:
            UnsupportedError: ``overlap`` is True.
            PeerLostError: the result lacks a rank, and ``enable_shrink`` is False.
            MoewireError: as for ``moewire.Buffer.combine``.
        """
        if overlap:
            raise UnsupportedError("overlap: Moewire reads x when it is called; leave it False")
        if use_logfmt and zero_copy:
            raise check.refuse("use_logfmt and zero_copy", "both", "at most one of them")
        buffer = self._low_latency("low_latency_combine")
        watch = _events.Watch(
            buffer, self._mask, "combine_wait_recv_cost_stats", combine_wait_recv_cost_stats
        )
        with watch:
            out, event, hook = buffer.combine(
                x,
                topk_idx,
                topk_weights,
                self._mask.active_ranks,
                self.timeout_us,
                handle,
                zero_copy,
                async_finish,
                return_recv_hook,
                out,
                _wait_ns=watch.on_device,
            )
        return out, *watch.around(event, hook)

    def get_next_low_latency_combine_buffer(self, handle: Handle) -> torch.Tensor:
        """Where expert outputs may be written in place.

        Args:
            handle: of the dispatch.

        Returns:
            bf16 [L, R*M, H], a writable view, for ``low_latency_combine(..., zero_copy=True)``.

        Raises:
            MoewireError: as for ``moewire.Buffer.get_next_combine_buffer``.
        """
        buffer = self._low_latency("get_next_low_latency_combine_buffer")
        return buffer.get_next_combine_buffer(handle, timeout_us=self.timeout_us)

    def clean_low_latency_buffer(
        self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int
    ) -> None:
        """Waits for every rank that is not masked. Collective.

        There is nothing to clean, and sizes may change without it. The wait is a dispatch of no
        tokens, so ranks that disagree about the sizes get ``PeerMismatchError``. On CUDA the
        current stream waits.

        Args:
            num_max_dispatch_tokens_per_rank: M.
            hidden: H.
            num_experts: E.

        Raises:
            PeerMismatchError: ranks disagree about M, H or E.
        """
        buffer = self._low_latency("clean_low_latency_buffer")
        check.limited("hidden", hidden)
        handle = buffer.dispatch(
            self._empty((0, hidden), torch.bfloat16),
            self._empty((0, 1), torch.int64),
            self._mask.active_ranks,
            num_max_dispatch_tokens_per_rank,
            num_experts,
            self.timeout_us,
            use_fp8=False,
        )[2]
        handle.release()

    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """Leaves a rank out of later calls, or takes it in again. With ``enable_shrink``.

        Args:
            rank_to_mask: the rank.
            mask: True leaves it out.
        """
        self._mask.set(rank_to_mask, mask)

    def low_latency_query_mask_buffer(self, mask_status: torch.Tensor) -> None:
        """Writes which ranks are masked. With ``enable_shrink``.

        Args:
            mask_status: int32 [R], written: 1 for a masked rank, lost ones included.
        """
        self._mask.write_to(mask_status)

    def low_latency_clean_mask_buffer(self) -> None:
        """Takes every rank in again. With enable_shrink."""
        self._mask.clear()

    def destroy(self) -> None:
        """Leaves the group; peers that wait are told. Idempotent.

        Raises:
            InvalidArgument: ``explicitly_destroy`` was False at construction.
        """
        if not self.explicitly_destroy:
            raise check.refuse("explicitly_destroy", "False at construction", "True to destroy")
        self._buffer.close()
        self.runtime = None

    def _low_latency(self, name: str) -> core.Buffer:
        if not self.low_latency_mode:
            raise check.refuse("low_latency_mode", "False at construction", f"True for {name}")
        return self._buffer
