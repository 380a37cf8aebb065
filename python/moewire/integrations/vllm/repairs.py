"""Repairs what vLLM 0.32.0's own expert parallelism lacks on the CPU, from outside.

1. Its communicator has no ``all_gatherv`` and ``reduce_scatterv``, which the stock all-to-all
   calls: NotImplementedError in the first forward.
2. Its experts ignore ``expert_map``: a global expert id indexes the local weights, and so
   reads another expert's, or past the end.
3. Compiled models trace into the MoE layer, but an exchange cannot be traced. vLLM's own
   opaque operator, which it uses on GPUs, is used instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from ._replacement import Replacement

Apply: TypeAlias = Callable[..., None]


def replacements() -> list[Replacement]:
    """All three, to be made once per process."""
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts
    from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

    mapped = with_expert_map(CPUUnquantizedExperts.apply)
    return [
        Replacement(CpuCommunicator, "all_gatherv", all_gatherv),
        Replacement(CpuCommunicator, "reduce_scatterv", reduce_scatterv),
        Replacement(CPUUnquantizedExperts, "apply", mapped),
        Replacement(MoERunner, "_select_forward", _opaque_forward),
    ]


def all_gatherv(
    communicator: Any,
    input_: torch.Tensor | list[torch.Tensor],
    dim: int = 0,
    sizes: Sequence[int] | None = None,
) -> Any:
    """Every rank's rows, one rank after another; ``sizes[r]`` rows of rank r.

    ``input_``: [sizes[own], ...], or a list of such; the answer has the same form. Collective.
    """
    if isinstance(input_, list):
        return [all_gatherv(communicator, one, dim, sizes) for one in input_]
    if dim != 0:
        raise NotImplementedError(f"all_gatherv along dimension {dim}; 0")
    rows = list(sizes) if sizes is not None else [len(input_)] * communicator.world_size
    padded = _padded(input_, max(rows))
    found = [torch.empty_like(padded) for _ in rows]
    torch.distributed.all_gather(found, padded, group=communicator.device_group)
    return torch.cat([one[:count] for one, count in zip(found, rows, strict=True)])


def reduce_scatterv(
    communicator: Any, input_: torch.Tensor, dim: int = 0, sizes: Sequence[int] | None = None
) -> torch.Tensor:
    """The sum over ranks of this rank's rows of ``input_`` [sum(sizes), ...]. Collective."""
    if dim != 0:
        raise NotImplementedError(f"reduce_scatterv along dimension {dim}; 0")
    total = input_.clone()
    torch.distributed.all_reduce(total, group=communicator.device_group)
    if sizes is None:
        sizes = [len(input_) // communicator.world_size] * communicator.world_size
    return total.split(list(sizes))[communicator.rank_in_group].clone()


def _padded(rows: torch.Tensor, count: int) -> torch.Tensor:
    whole = rows.new_zeros((count, *rows.shape[1:]))
    whole[: len(rows)] = rows
    return whole


def with_expert_map(apply: Apply) -> Apply:
    """``CPUUnquantizedExperts.apply`` with its ids turned into local ones first."""

    def mapped(
        self: Any,
        output: torch.Tensor,
        hidden_states: torch.Tensor,
        w1: torch.Tensor,
        w2: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        activation: Any,
        global_num_experts: int,
        expert_map: torch.Tensor | None,
        *rest: Any,
        apply_router_weight_on_input: bool = False,
        **named: Any,
    ) -> None:
        if expert_map is not None:
            topk_ids, topk_weights = local_selections(topk_ids, topk_weights, expert_map)
        apply(
            self,
            output,
            hidden_states,
            w1,
            w2,
            topk_weights,
            topk_ids,
            activation,
            global_num_experts,
            None,
            *rest,
            apply_router_weight_on_input=apply_router_weight_on_input,
            **named,
        )
        if expert_map is not None and apply_router_weight_on_input:
            output[(topk_weights == 0).all(dim=1)] = 0  # its kernel leaves the weights out

    return mapped


def local_selections(
    topk_ids: torch.Tensor, topk_weights: torch.Tensor, expert_map: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and weights [n, K] -> [n, k] with local ids, k the most that any row has.

    ``expert_map``: int32 [E], -1 for experts of other ranks; a negative id selects nothing. Local
    selections keep their order and come first; a row with fewer than k ends in selections of
    expert 0 with weight 0, because the kernel needs an expert in every place.
    """
    local = expert_map[topk_ids.clamp(min=0).long()].to(topk_ids.dtype)
    is_ours = (local >= 0) & (topk_ids >= 0)
    most = max(1, int(is_ours.sum(dim=1).max())) if len(topk_ids) else 1
    order = is_ours.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]
    ours = is_ours.gather(1, order)
    ids = local.gather(1, order).masked_fill(~ours, 0)
    weights = topk_weights.gather(1, order).masked_fill(~ours, 0)
    return ids.contiguous(), weights.contiguous()


def _opaque_forward(runner: Any) -> Any:
    shared = runner._shared_experts is not None
    return torch.ops.vllm.moe_forward_shared if shared else torch.ops.vllm.moe_forward
