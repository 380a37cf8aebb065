"""SGLang's side: its dispatchers, driven as its model code does."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import sglang_light
import sglang_reference as reference
import torch
from sglang_reference import MAX_TOKENS, Batch

STAGES = ("dispatch_a", "dispatch_b", "combine_a", "combine_b")


def load_plugins() -> None:
    """SGLang's own: looks for entry points and runs them."""
    from sglang.srt import plugins

    plugins.load_plugins()


def set_active_ranks(active_ranks: torch.Tensor) -> None:
    """SGLang's elastic state; without one it makes masks on a GPU."""
    from sglang.srt.elastic_ep.elastic_ep import ElasticEPState, ElasticEPStateManager

    state = ElasticEPState(active_ranks, active_ranks.clone(), active_ranks.clone())
    state.effective_ep_size = int(active_ranks.sum())
    ElasticEPStateManager._instance = state


def make_dispatcher(
    backend: str,
    group: Any,
    experts: int,
    *,
    hook: bool = True,
    dtype: str = "fp8",
    mode: str = "low_latency",
) -> Any:
    """One per layer and half of a batch, as SGLang constructs it."""
    from sglang.srt.layers.moe import utils

    for name in ("MOONCAKE_EP", "DEEPEP"):
        os.environ[f"SGLANG_{name}_NUM_MAX_DISPATCH_TOKENS_PER_RANK"] = str(MAX_TOKENS)
    # DeepEP's dispatcher asks how many cores the GPU has, and whether the server was told a dtype.
    utils.get_server_args = lambda: None
    properties = SimpleNamespace(multi_processor_count=100)
    torch.cuda.get_device_properties = lambda *_, **__: properties
    name = {"mooncake": "MooncakeEPDispatcher", "deepep": "DeepEPDispatcher"}[backend]
    dispatcher = getattr(sglang_light.dispatcher(backend), name)(
        group=group,
        router_topk=reference.TOPK,
        permute_fusion=True,
        num_experts=experts,
        num_local_experts=experts // group.size(),
        hidden_size=reference.HIDDEN,
        params_dtype=torch.bfloat16,
        deepep_mode=utils.DeepEPMode(mode),
        async_finish=True,
        return_recv_hook=hook,
    )
    if backend == "deepep":
        dispatcher.set_quant_config({"dispatcher_output_dtype": dtype})
    return dispatcher


def shared_buffer(backend: str) -> Any:
    """The one of the process, whichever library it is from."""
    module = sglang_light.dispatcher(backend)
    if backend == "mooncake":
        return module.EPBuffer.get_existing_buffer()
    return module.DeepEPBuffer._state().buffer


def num_operations(backend: str) -> list[int]:
    """Dispatches and combines that Moewire's core has finished; fails on another library's."""
    import moewire

    buffer = shared_buffer(backend)
    core = buffer._buffer if backend == "deepep" else buffer
    assert isinstance(core, moewire.Buffer), type(buffer)
    stats = core.stats()
    return [stats["dispatch"]["count"], stats["combine"]["count"]]


class Pass:
    """One batch through one layer, a stage at a time."""

    def __init__(self, dispatcher: Any, own: Batch) -> None:
        self._dispatcher = dispatcher
        self._own = own
        self.received: Any = None
        self.out: Any = None
        self._stage = 0

    def step(self) -> None:
        """The next of ``STAGES``."""
        getattr(self, f"_{STAGES[self._stage]}")()
        self._stage += 1

    def run(self) -> torch.Tensor:
        """What is left of them."""
        for _ in range(self._stage, len(STAGES)):
            self.step()
        out: torch.Tensor = self.out
        return out

    def _dispatch_a(self) -> None:
        self._dispatcher.dispatch_a(
            hidden_states=self._own.x.clone(), topk_output=self._own.routing()
        )

    def _dispatch_b(self) -> None:
        self.received = self._dispatcher.dispatch_b()

    def _combine_a(self) -> None:
        got = self.received
        outputs = run_experts(got, self._dispatcher)
        self._dispatcher.combine_a((outputs, got.topk_ids, got.topk_weights))

    def _combine_b(self) -> None:
        self.out = self._dispatcher.combine_b()


def implementation(dispatcher: Any) -> Any:
    """Where SGLang keeps the handle."""
    return dispatcher._low_latency_dispatcher


def first_expert(dispatcher: Any) -> int:
    """The first of this rank's."""
    inner = getattr(dispatcher, "_low_latency_dispatcher", None) or dispatcher._normal_dispatcher
    return int(inner.group.rank() * inner.num_local_experts)


def run_experts(got: Any, dispatcher: Any) -> torch.Tensor:
    """Its own in the masked layout: bf16 [L, R * M, H], rows from masked_m on untouched."""
    outputs = torch.full(got.hidden_states.shape, float("nan"), dtype=torch.bfloat16)
    for local, count in enumerate(got.masked_m.tolist()):
        rows = got.hidden_states[local, :count]
        if got.hidden_states_scale is not None:
            rows = reference.restore(rows, got.hidden_states_scale[local, :count])
        outputs[local, :count] = reference.expert(first_expert(dispatcher) + local, rows)
    return outputs


def rows_received(got: Any, local: int) -> list[bytes]:
    """The bytes of a local expert's rows, sorted."""
    scales = got.hidden_states_scale
    count = int(got.masked_m[local])
    return sorted(
        reference.packed(
            got.hidden_states[local, row], None if scales is None else scales[local, row]
        )
        for row in range(count)
    )


def quantised(
    x: torch.Tensor, block: int, *, column_major_scales: bool, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """In place of SGLang's kernel, by which it sends prompts in fp8."""
    assert block == reference.BLOCK
    values, scales = reference.quantise(x)
    return values, scales.T.contiguous().T if column_major_scales else scales


def run_prompt_experts(got: Any, dispatcher: Any) -> torch.Tensor:
    """Its own in the normal mode's layout: each row's outputs, weighted and summed; bf16 [N, H]."""
    first, rows = first_expert(dispatcher), got.hidden_states
    if got.hidden_states_scale is not None:
        rows = reference.restore(rows, got.hidden_states_scale)
    outputs = torch.zeros(rows.shape, dtype=torch.bfloat16)
    for at, row in enumerate(rows.unsqueeze(1)):
        ids, weights = got.topk_ids[at].tolist(), got.topk_weights[at]
        outputs[at] = reference.weighted(
            [first + one if one >= 0 else -1 for one in ids], weights, row
        )
    return outputs


def prompt_rows(got: Any) -> list[bytes]:
    """The bytes of the rows with their local ids, in order."""
    scales = got.hidden_states_scale
    return [
        reference.packed(row, None if scales is None else scales[at]) + bytes(str(ids), "ascii")
        for at, (row, ids) in enumerate(zip(got.hidden_states, got.topk_ids.tolist(), strict=True))
    ]
