"""Batched experts on the CPU, which vLLM has no class for that its selection offers."""

from __future__ import annotations

from typing import Any

import torch
import vllm.model_executor.layers.fused_moe.modular_kernel as mk
from torch.nn import functional
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.topk_weight_and_reduce import TopKWeightAndReduceDelegate
from vllm.platforms import current_platform


class CPUBatchedExperts(mk.FusedMoEExpertsModular):  # type: ignore[misc]
    """Two matrix products per expert that received rows; SiLU, unquantised. Correct, not fast."""

    @staticmethod
    def activation_format() -> Any:
        """Expert by expert."""
        return mk.FusedMoEActivationFormat.BatchedExperts

    @staticmethod
    def _supports_current_device() -> bool:
        return bool(current_platform.is_cpu())

    @staticmethod
    def _supports_no_act_and_mul() -> bool:
        return False

    @staticmethod
    def _supports_quant_scheme(weight_key: Any, activation_key: Any) -> bool:
        return weight_key is None and activation_key is None

    @staticmethod
    def _supports_activation(activation: Any) -> bool:
        return bool(activation == MoEActivation.SILU)

    @staticmethod
    def _supports_parallel_config(moe_parallel_config: Any) -> bool:
        return True

    def finalize_weight_and_reduce_impl(self) -> Any:
        """The exchange weighs and sums."""
        return TopKWeightAndReduceDelegate()

    def workspace_shapes(
        self, num_tokens: int, width: int, hidden: int, topk: int, *rest: Any
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """No scratch; the result has the rows' shape, [L, M*R, H]."""
        num_local_experts = rest[1]
        rows = self.max_num_tokens * self.num_dispatchers
        return (0,), (0,), (num_local_experts, rows, hidden)

    def apply(
        self,
        output: torch.Tensor,
        hidden_states: torch.Tensor,
        w1: torch.Tensor,
        w2: torch.Tensor,
        *_: Any,
        expert_tokens_meta: Any,
        **__: Any,
    ) -> None:
        """``output[l, :n]``: expert l's results for its n valid rows; others stay as they are.

        Args:
            output, hidden_states: [L, M*R, H].
            w1: [L, 2I, H], gate before up; w2: [L, H, I].
            expert_tokens_meta: ``expert_num_tokens`` is int32 [L].
        """
        for expert, count in enumerate(expert_tokens_meta.expert_num_tokens.tolist()):
            if count:
                bias1, bias2 = (
                    None if bias is None else bias[expert] for bias in (self.w1_bias, self.w2_bias)
                )
                rows = hidden_states[expert, :count]
                gate, up = functional.linear(rows, w1[expert], bias1).chunk(2, dim=1)
                inner = functional.silu(gate) * up
                output[expert, :count] = functional.linear(inner, w2[expert], bias2)
