"""vLLM's own users of DeepEP, with Moewire behind that name: a layer's forward on two ranks.

vLLM's managers make the buffers, and its kernel calls ``prepare`` and ``finalize``. Stand-ins: the
experts, and what computes with kernels or asks NCCL (functions that end in ``_stand_in``).
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import vllm.model_executor.layers.fused_moe.modular_kernel as mk
import vllm_fakes as fakes
import vllm_overlap_jobs as overlap
from vllm.distributed.device_communicators import all2all
from vllm.model_executor.layers.fused_moe.config import (
    FUSED_MOE_UNQUANTIZED_CONFIG,
    FusedMoEQuantConfig,
)
from vllm.model_executor.layers.fused_moe.topk_weight_and_reduce import TopKWeightAndReduceNoOP
from vllm_deepep_model import BLOCK, EXPERTS, HIDDEN, TOPK, Batch, batches, layer, scale_of

import moewire.deep_ep
from moewire.compat import deep_ep as alias
from moewire.integrations.vllm.cpu_experts import CPUBatchedExperts

MOST = 64  # tokens of a rank
COUNTS = ((5, 7), (0, 9), (4, 0), (61, 1))  # of each rank, by step
LAYERS = 2


def high_throughput(source: str, fp8: bool) -> dict[str, Any]:
    """``deepep_high_throughput``. ``source``: where its files are; "": in the wheel."""
    return _run(_high_throughput(source), moewire.deep_ep.Buffer, fp8)


def second_version(source: str, fp8: bool, graphs: bool) -> dict[str, Any]:
    """``--all2all-backend deepep_v2``: expanded rows, or as for graphs in decoding."""
    return _run(_second_version(source, fp8, graphs), moewire.deep_ep.ElasticBuffer, fp8)


def two_micro_batches(source: str) -> dict[str, Any]:
    """High throughput, a thread for each: both are dispatched before one is combined."""
    rank = dist.get_rank()
    made = _high_throughput(source)
    layers = [_kernel(made, False) for _ in range(LAYERS)]
    given = [batches(COUNTS[0], 50 + number) for number in (0, 1)]
    order = _order_of(made.buffer)
    outs = overlap._overlapped([partial(_forward, layers, own[rank]) for own in given])
    right = [torch.equal(out, _expected(own[rank])) for out, own in zip(outs, given, strict=True)]
    return {"right": right, "order": order}


def _run(made: Any, kind: type, fp8: bool) -> dict[str, Any]:
    rank, wrong = dist.get_rank(), []
    layers = [_kernel(made, fp8) for _ in range(LAYERS)]
    cases = [(counts, experts) for counts in COUNTS for experts in ("any", "first rank")]
    for number, (counts, experts) in enumerate(cases):
        given = batches(counts, number, experts)
        _context_stand_in(made, max(counts))
        if not torch.equal(_forward(layers, given[rank]), _expected(given[rank])):
            wrong.append(f"{counts} to {experts}")
    return {"wrong": wrong, "cases": len(cases), "ours": type(made.buffer) is kind}


def _forward(layers: list[Any], own: Batch) -> torch.Tensor:
    weights = torch.empty((EXPERTS // dist.get_world_size(), 2, HIDDEN))
    x = own.x
    for one in layers:
        x = one.apply(
            hidden_states=x,
            w1=weights,
            w2=weights,
            topk_ids=own.ids,
            topk_weights=own.weights,
            global_num_experts=EXPERTS,
        )
    return x


def _expected(own: Batch) -> torch.Tensor:
    x = own.x
    for _ in range(LAYERS):
        x = layer(own._replace(x=x))
    return x


def _high_throughput(source: str) -> Any:
    """One layer's exchange, its buffer from vLLM's manager."""
    module = _module("deepep_ht", source)
    module._dbo_record_stream = lambda *_: None  # tensors on the CPU have none
    fakes.groups(dist.group.WORLD)
    manager = all2all.DeepEPHTAll2AllManager(dist.group.WORLD)
    rank, size = dist.get_rank(), dist.get_world_size()
    return module.DeepEPHTPrepareAndFinalize(
        manager.get_handle({}),
        num_dispatchers=size,
        dp_size=size,
        rank_expert_offset=rank * EXPERTS // size,
    )


def _second_version(source: str, fp8: bool, graphs: bool) -> Any:
    module = _module("deepep_v2", source)
    module._globalize_recv_topk_idx = _globalize_stand_in
    fakes.groups(dist.group.WORLD)
    all2all.has_deep_ep_v2 = lambda: True  # it looks for NCCL
    manager = all2all.DeepEPV2All2AllManager(dist.group.WORLD)
    manager._gin_checked = True
    sizes = {"num_max_tokens_per_rank": MOST, "hidden": HIDDEN, "num_topk": TOPK}
    buffer = manager.get_handle({**sizes, "use_fp8_dispatch": fp8, "num_experts": EXPERTS})
    rank, size = dist.get_rank(), dist.get_world_size()
    return module.DeepEPV2PrepareAndFinalize(
        buffer,
        num_dispatchers=size,
        dp_size=size,
        rank_expert_offset=rank * EXPERTS // size,
        num_experts=EXPERTS,
        num_topk=TOPK,
        use_fp8_dispatch=fp8,
        use_cudagraph=graphs,
    )


def _module(name: str, source: str) -> Any:
    """The wheel's module, or a file of another version's source in its place."""
    alias.install()
    package = "vllm.model_executor.layers.fused_moe.prepare_finalize"
    full = f"{package}.{name}"
    if source and full not in sys.modules:
        path = Path(source, *full.split(".")).with_suffix(".py")
        spec = importlib.util.spec_from_file_location(full, path)
        assert spec is not None and spec.loader is not None
        sys.modules[full] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[full])
    module = importlib.import_module(full)
    assert str(module.__file__).startswith(source)
    module.moe_kernel_quantize_input = _quantise_stand_in  # type: ignore[attr-defined]
    return module


def _kernel(exchange: Any, fp8: bool) -> Any:
    """vLLM's own kernel around an exchange."""
    config = fakes.layer_config(
        dist.get_rank(), dist.get_world_size(), EXPERTS, HIDDEN, torch.bfloat16
    )
    quantised = FusedMoEQuantConfig.make(torch.float8_e4m3fn, block_shape=[BLOCK, BLOCK])
    return mk.FusedMoEKernel(
        exchange, _Experts(config, quantised if fp8 else FUSED_MOE_UNQUANTIZED_CONFIG)
    ).impl


class _Experts(CPUBatchedExperts):
    """Each multiplies by a number of its own. The results of a row are weighed and added up."""

    @staticmethod
    def activation_format() -> Any:
        return mk.FusedMoEActivationFormat.Standard

    def finalize_weight_and_reduce_impl(self) -> Any:
        return TopKWeightAndReduceNoOP()

    def workspace_shapes(self, num_tokens: int, width: int, hidden: int, *_: Any) -> Any:
        return (0,), (0,), (num_tokens, hidden)

    def apply(
        self,
        output: torch.Tensor,
        hidden_states: torch.Tensor,
        *,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        a1q_scale: torch.Tensor | None,
        expert_tokens_meta: Any,
        **_: Any,
    ) -> None:
        rows = hidden_states.float()
        if a1q_scale is not None:
            rows = rows * a1q_scale.repeat_interleave(BLOCK, dim=1)
        first = dist.get_rank() * EXPERTS // dist.get_world_size()
        here = (topk_ids >= first) & (topk_ids < first + EXPERTS // dist.get_world_size())
        _check_counts(expert_tokens_meta, topk_ids[here] - first)
        factors = torch.where(here, topk_weights * scale_of(topk_ids), 0.0)
        rows = torch.where(here.any(1, keepdim=True), rows, 0.0)  # some came from no token
        output.copy_(rows * factors.sum(1, keepdim=True))


def _check_counts(meta: Any, local_ids: torch.Tensor) -> None:
    """vLLM's grouped products rely on the counts."""
    counts = None if meta is None else meta.expert_num_tokens_cpu
    if counts is not None:
        found = torch.bincount(local_ids, minlength=EXPERTS // dist.get_world_size())
        assert counts.tolist() == found.tolist() == meta.expert_num_tokens.tolist()


def _quantise_stand_in(
    x: torch.Tensor, _scale: Any, quant_dtype: Any, *_: Any, **__: Any
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """In place of vLLM's kernel: exact, other scales in each row and block."""
    if quant_dtype is None:
        return x, None
    rows, blocks = len(x), HIDDEN // BLOCK
    scales = 2.0 ** (torch.arange(rows * blocks).view(rows, blocks) % 5 - 2)
    return (x.float() / scales.repeat_interleave(BLOCK, dim=1)).to(quant_dtype), scales


def _globalize_stand_in(
    local: torch.Tensor, psum: torch.Tensor, offset: int, _num_experts: int
) -> torch.Tensor:
    """In place of a kernel in Triton."""
    came = torch.arange(len(local)).unsqueeze(1) < psum[-1]
    return torch.where((local >= 0) & came, local + offset, -1)


def _context_stand_in(made: Any, most: int) -> None:
    """How many tokens ranks have, which vLLM's ranks tell one another before a forward."""
    module: Any = sys.modules[type(made).__module__]
    counts = SimpleNamespace(num_tokens_across_dp_cpu=torch.tensor([most]))
    module.get_forward_context = lambda: SimpleNamespace(dp_metadata=counts)


def _order_of(buffer: Any) -> list[str]:
    """Grows with each call that moves rows."""
    order: list[str] = []

    def noted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def take(*arguments: Any, **named: Any) -> Any:
            order.append(name)
            return call(*arguments, **named)

        return take

    for name in ("dispatch", "combine"):
        setattr(buffer, name, noted(name, getattr(buffer, name)))
    return order
