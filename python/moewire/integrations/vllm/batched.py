"""vLLM's batched experts over the packed exchange: rows lie expert by expert.

It replaces vLLM's ``deepep_low_latency`` and similar backends, on any platform. Written against
vLLM 0.32.0 and run on the CPU. Some parts are only used on a GPU: a handle per micro-batch of
dual-batch overlap, and the hooks. They are tested without a GPU, in the order in which vLLM's own
kernel and its contexts call them, and were never run on one.

Notation: R ranks, E experts, L = E/R local experts, M tokens per rank at most, H hidden size,
T tokens of this rank, K selections per token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import vllm.model_executor.layers.fused_moe.modular_kernel as mk
from vllm.model_executor.layers.fused_moe.topk_weight_and_reduce import TopKWeightAndReduceDelegate
from vllm.v1.worker.ubatching import dbo_current_ubatch_id, dbo_enabled, dbo_maybe_run_recv_hook

from ...errors import InvalidArgument
from .. import _buffers
from . import _float32, _lost, _place, _platform, _sizes

if TYPE_CHECKING:
    from ...buffer import Buffer
    from ...handle import Handle

Receiver = Callable[[], Any]


class BatchedPrepareAndFinalize(mk.FusedMoEPrepareAndFinalizeModular):  # type: ignore[misc]
    """The exchange of one MoE layer; layers of one shape share a Buffer.

    Args:
        sizes: the shape that every rank agrees on.
        group: the process group of the expert-parallel ranks; borrowed.

    ``finalize`` applies the weights, in float32 in the order of the selections, on the rank that
    the token came from. Used by one thread at a time, or by one per micro-batch.
    """

    def __init__(self, sizes: _sizes.Sizes, group: torch.distributed.ProcessGroup) -> None:
        super().__init__()
        self.sizes = sizes
        self.group = group
        self.fp32 = sizes.dtype == torch.float32
        self.handles: dict[int, Handle] = {}  # by micro-batch
        self._lost = _lost.Watch(sizes.num_ranks, _platform.tensor_device())

    @property
    def activation_format(self) -> Any:
        """Expert by expert."""
        return mk.FusedMoEActivationFormat.BatchedExperts

    def topk_indices_dtype(self) -> torch.dtype:
        """What ``dispatch`` takes."""
        return torch.int64

    def max_num_tokens_per_rank(self) -> int:
        """M."""
        return self.sizes.max_tokens

    def num_dispatchers(self) -> int:
        """R."""
        return self.sizes.num_ranks

    def output_is_reduced(self) -> bool:
        """``finalize`` gives the sum over all ranks' experts."""
        return True

    def supports_async(self) -> bool:
        """Both halves may be overlapped with other work."""
        return True

    def buffer(self) -> Buffer:
        """Of all layers of this shape; collective when it is new."""
        return _buffers.buffer_for(self._key())

    def _key(self) -> _buffers.Key:
        sizes = self.sizes
        hidden = _float32.width(sizes.hidden) if self.fp32 else sizes.hidden
        # In float32 every selection travels as a token of its own.
        tokens = sizes.max_tokens * (sizes.num_topk if self.fp32 else 1)
        return _buffers.Key(
            _place.of(self.group), hidden, sizes.num_experts, torch.bfloat16, tokens
        )

    def prepare(self, *arguments: Any, **named: Any) -> Any:
        """``prepare_async`` and its wait; the same arguments."""
        hook, receiver = self.prepare_async(*arguments, **named)
        hook()
        return receiver()

    def prepare_async(
        self,
        a1: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        num_experts: int,
        expert_map: torch.Tensor | None,
        apply_router_weight_on_input: bool,
        quant_config: Any,
        defer_input_quant: bool = False,
    ) -> tuple[Callable[[], None], Receiver]:
        """Sends this rank's tokens.

        Args:
            a1: [T, H] in the model's dtype, T <= M.
            topk_weights, topk_ids: [T, K]; ids int64, global.
            num_experts: E; any other than at construction is refused.
            apply_router_weight_on_input: K is 1, and the input is scaled, not the result.

        Returns:
            ``(hook, receiver)``. After ``hook()``, ``receiver()`` gives the rows
            [L, M*R, H] and how many of each expert are valid; the others are undefined. They
            may be read until ``finalize``.
        """
        _refuse(quant_config, num_experts, self.sizes)
        if apply_router_weight_on_input:
            _sizes.refuse_topk_over_one(topk_ids)
            a1 = a1 * topk_weights.to(a1.dtype)
        stale = self.handles.pop(dbo_current_ubatch_id(), None)
        if stale is not None:  # an exception came between its prepare and finalize
            _lost.give_up(stale)
        x, ids = self._outgoing(a1, topk_ids)
        rows, counts, handle, _, hook = self.buffer().dispatch(
            x,
            ids,
            self._lost.active_ranks,
            self._key().max_tokens,
            num_experts,
            self._lost.timeout_us,
            use_fp8=False,
            return_recv_hook=True,
        )
        assert hook is not None and isinstance(rows, torch.Tensor)
        self.handles[dbo_current_ubatch_id()] = handle
        return hook, lambda: self._received(rows, counts)

    def _outgoing(
        self, a1: torch.Tensor, topk_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.fp32:
            return a1.contiguous(), topk_ids.contiguous()
        return _float32.outgoing(a1, topk_ids.shape[1]), topk_ids.reshape(-1, 1)

    def _received(self, rows: torch.Tensor, counts: torch.Tensor) -> Any:
        self._lost.refuse()
        meta = mk.ExpertTokensMetadata(expert_num_tokens=counts, expert_num_tokens_cpu=None)
        return (self._widened(rows, counts) if self.fp32 else rows), None, meta, None, None

    def _widened(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """A token selects an expert at most once: M*R rows of each are enough."""
        sizes = self.sizes
        shape = (rows.shape[0], sizes.max_tokens * sizes.num_ranks, sizes.hidden)
        x = torch.empty(shape, dtype=torch.float32, device=rows.device)
        for expert, count in enumerate(counts.tolist()):
            x[expert, :count] = _float32.incoming(rows[expert, :count], sizes.hidden)
        return x

    def finalize(self, *arguments: Any, **named: Any) -> None:
        """``finalize_async`` and its wait; the same arguments."""
        hook, receiver = self._finalize(*arguments, **named, asynchronous=False)
        hook()
        receiver()

    def finalize_async(
        self, *arguments: Any, **named: Any
    ) -> tuple[Callable[[], None], Callable[[], None]]:
        """Sends the experts' results.

        Args:
            output: [T, H] in the model's dtype, written.
            fused_expert_output: [L, M*R, H], the results in the rows' positions, unweighted.
            topk_weights, topk_ids: [T, K], as given to ``prepare``.
            apply_router_weight_on_input: the input was scaled, so the results are not.
            weight_and_reduce_impl: ``TopKWeightAndReduceDelegate``; others are refused.

        Returns:
            ``(hook, receiver)``; ``output`` is complete after both.
        """
        return self._finalize(*arguments, **named, asynchronous=True)

    def _finalize(
        self,
        output: torch.Tensor,
        fused_expert_output: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        apply_router_weight_on_input: bool,
        weight_and_reduce_impl: Any,
        *,
        asynchronous: bool,
    ) -> tuple[Callable[[], None], Callable[[], None]]:
        if not isinstance(weight_and_reduce_impl, TopKWeightAndReduceDelegate):
            kind = type(weight_and_reduce_impl).__name__
            raise InvalidArgument(f"weight_and_reduce_impl: {kind}; TopKWeightAndReduceDelegate")
        weights = topk_weights.to(torch.float32).contiguous()
        if apply_router_weight_on_input:
            weights = torch.ones_like(weights)
        handle = self.handles.pop(dbo_current_ubatch_id())
        dbo_maybe_run_recv_hook()
        send = self._combine_fp32 if self.fp32 else self._combine
        hook = send(
            output, fused_expert_output, weights, topk_ids, handle, dbo_enabled() or asynchronous
        )
        return hook, self._lost.refuse

    def _combine(
        self,
        output: torch.Tensor,
        results: torch.Tensor,
        weights: torch.Tensor,
        topk_ids: torch.Tensor,
        handle: Handle,
        asynchronous: bool,
    ) -> Callable[[], None]:
        _, _, hook = self.buffer().combine(
            results,
            topk_ids.contiguous(),
            weights,
            self._lost.active_ranks,
            self._lost.timeout_us,
            handle,
            return_recv_hook=asynchronous,
            out=output,
        )
        return hook or _nothing

    def _combine_fp32(
        self,
        output: torch.Tensor,
        results: torch.Tensor,
        weights: torch.Tensor,
        topk_ids: torch.Tensor,
        handle: Handle,
        asynchronous: bool,
    ) -> Callable[[], None]:
        buffer, active, limit = self.buffer(), self._lost.active_ranks, self._lost.timeout_us
        parts = buffer.get_next_combine_buffer(handle, timeout_us=limit)
        for expert, count in enumerate(_counts(handle)):
            _float32.split(results[expert, :count], parts[expert, :count])
        ids = topk_ids.reshape(-1, 1)
        ones = weights.new_ones(ids.shape)
        found, _, hook = buffer.combine(
            parts, ids, ones, active, limit, handle, zero_copy=True, return_recv_hook=asynchronous
        )

        def finish() -> None:
            (hook or _nothing)()
            output.copy_(_weighted(_float32.merge(found), weights))

        return finish


def _weighted(results: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """float32 [T*K, H] -> [T, H], in the order of the selections."""
    num_tokens, num_topk = weights.shape
    results = results.unflatten(0, (num_tokens, num_topk))
    total = results.new_zeros((num_tokens, results.shape[2]))
    for k in range(num_topk):
        total += weights[:, k, None] * results[:, k]
    return total


def _counts(handle: Handle) -> list[int]:
    """Rows received by each local expert."""
    counts: list[int] = (handle[1] & 0xFFFFFFFF).sum(dim=1).tolist()
    return counts


def _nothing() -> None:
    pass


def _refuse(quant_config: Any, num_experts: int, sizes: _sizes.Sizes) -> None:
    if quant_config.quant_dtype is not None:
        raise InvalidArgument(
            f"quant_config: activations in {quant_config.quant_dtype}; MOEWIRE_VLLM=batched "
            "takes unquantised ones"
        )
    if num_experts != sizes.num_experts:
        raise InvalidArgument(f"num_experts: {num_experts}; {sizes.num_experts} as configured")
