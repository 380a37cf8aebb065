"""What the ranks do with SGLang's back-end ``deepep_v2``. Each job answers with plain values."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import sglang_client as client
import sglang_light
import sglang_reference as reference
import torch
import torch.distributed as dist
from sglang_jobs import LOCAL_EXPERTS
from sglang_reference import HIDDEN, MAX_TOKENS, TOPK, Batch

ALIGNMENT = 128  # of the experts' rows, SGLang's


def layers(step: str, fp8: bool, num_layers: int) -> dict[str, Any]:
    """Layer after layer. ``step``: "decode", "prefill" or, with a row per token, "compact"."""
    client.load_plugins()
    group, size = dist.group.WORLD, dist.get_world_size()
    wrong, lengths = [], []
    expanded = step != "compact"
    for number in range(num_layers):
        batches = [reference.batch(number, rank, LOCAL_EXPERTS * size) for rank in range(size)]
        own = batches[dist.get_rank()]
        one = _dispatcher(group, step, fp8)
        got = one.dispatch(own.x.clone(), own.routing())
        if _counts(got) != _expected_counts(batches, pads=step != "decode"):
            wrong.append(f"layer {number}: counts")
        wrong += [f"layer {number}: {what}" for what in _misshapen(got, step, fp8)]
        out = one.combine(_combine_input(_experts(got)))
        want = reference.prompt_layer(own, LOCAL_EXPERTS, size, fp8=fp8, expanded=expanded)
        if not torch.equal(out, want):
            wrong.append(f"layer {number}: result")
        lengths.append(len(own.x))
    buffer = sglang_light.dispatcher("deepep_v2").DeepEPv2Buffer._state().buffer
    return {"wrong": wrong, "lengths": lengths, "buffer": type(buffer).__module__}


def _dispatcher(group: Any, step: str, fp8: bool) -> Any:
    """As SGLang's layers make one. Its configuration and its kernel for fp8 are stand-ins."""
    from sglang.srt.layers import deep_gemm_wrapper
    from sglang.srt.runtime_context import get_forward

    module = sglang_light.dispatcher("deepep_v2")
    os.environ["SGLANG_DEEPEP_V2_NUM_MAX_DISPATCH_TOKENS_PER_RANK"] = str(MAX_TOKENS)
    os.environ["SGLANG_DEEPEP_V2_ENABLE_PREFILL_EXPAND"] = str(int(step == "prefill"))
    module.get_exec = lambda: SimpleNamespace(moe=SimpleNamespace(deepep_v2_mode="direct"))
    module.get_parallel = lambda: SimpleNamespace(attn_dp_size=group.size())
    module.sglang_per_token_group_quant_fp8 = client.quantised
    deep_gemm_wrapper.DEEPGEMM_NEED_TMA_ALIGNED_SCALES = True
    deep_gemm_wrapper.DEEPGEMM_SCALE_UE8M0 = False
    get_forward().set("is_extend_in_batch", step != "decode")
    return module.DeepEPv2Dispatcher(
        group=group,
        router_topk=TOPK,
        num_experts=LOCAL_EXPERTS * group.size(),
        num_local_experts=LOCAL_EXPERTS,
        hidden_size=HIDDEN,
        params_dtype=torch.bfloat16,
        use_fp8_dispatch=fp8,
    )


def _ends(got: Any) -> list[tuple[int, int]]:
    """Of each local expert: its first expanded row, and the one after its last."""
    ends, first = [], 0
    for end in got.psum_num_recv_tokens_per_expert.tolist():
        ends.append((first, end))
        first = -(-end // ALIGNMENT) * ALIGNMENT
    return ends


def _counts(got: Any) -> list[int]:
    """Selections of each local expert."""
    if got.is_expanded:
        return [end - first for first, end in _ends(got)]
    ids = got.topk_ids[got.topk_ids >= 0]
    return [int((ids == local).sum()) for local in range(LOCAL_EXPERTS)]


def _expected_counts(batches: list[Batch], pads: bool) -> list[int]:
    """For prompts SGLang has a rank without tokens send one to the first experts."""
    ids = [one.ids.flatten() for one in batches]
    ids += [torch.arange(TOPK) for one in batches if pads and not len(one.x)]
    first = dist.get_rank() * LOCAL_EXPERTS
    return [int((torch.cat(ids) == first + local).sum()) for local in range(LOCAL_EXPERTS)]


def _misshapen(got: Any, step: str, fp8: bool) -> list[str]:
    """What SGLang's grouped products rely on."""
    wrong = []
    rows = got.hidden_states.shape[0]
    if step == "decode" and rows < dist.get_world_size() * MAX_TOKENS * TOPK:
        wrong.append("room for the worst case")
    if got.is_expanded and rows % ALIGNMENT:
        wrong.append("rows are not aligned")
    if fp8 and step == "compact" and got.hidden_states_scale.stride(0) != 1:
        wrong.append("scales do not lie by column")
    return wrong


def _experts(got: Any) -> torch.Tensor:
    """Their results, weighted; NaN where no row came."""
    rows, first = got.hidden_states, dist.get_rank() * LOCAL_EXPERTS
    if got.hidden_states_scale is not None:
        rows = reference.restore(rows, got.hidden_states_scale.contiguous())
    outputs = torch.full(rows.shape, float("nan"), dtype=torch.bfloat16)
    if not got.is_expanded:
        for at, row in enumerate(rows.unsqueeze(1)):
            ids = [first + one if one >= 0 else -1 for one in got.topk_ids[at].tolist()]
            outputs[at] = reference.weighted(ids, got.topk_weights[at], row)
        return outputs
    for local, (begin, end) in enumerate(_ends(got)):
        results = reference.expert(first + local, rows[begin:end]).float()
        outputs[begin:end] = results * got.topk_weights[begin:end, None]
    return outputs


def _combine_input(outputs: torch.Tensor) -> Any:
    module = sglang_light.dispatcher("deepep_v2")
    return module.DeepEPv2CombineInput(hidden_states=outputs, topk_weights=None)
