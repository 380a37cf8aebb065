"""What the ranks do with clients of DeepEP, unchanged. Each job answers with plain values."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import deep_ep_preload
import deep_ep_world as worlds
import torch
import torch.distributed as dist
from deep_ep_world import HIDDEN, LAYERS, LOCAL_EXPERTS, TOPK, Gradients, World
from torch.utils.checkpoint import checkpoint

import moewire.deep_ep

STEPS = 3


def megatron(async_finish: bool) -> dict[str, Any]:
    """Megatron's functions over the alias, forward and backward."""
    from megatron.core.transformer.moe import fused_a2a

    return _functions(fused_a2a, async_finish)


def nemo(async_finish: bool) -> dict[str, Any]:
    """NeMo Automodel's, with and without a checkpoint; its replay uses the routing again."""
    module = deep_ep_preload.nemo()
    answer = _functions(module, async_finish)
    answer["replay"] = _replay(module, async_finish)
    first = module._buffer
    module.free_buffer()
    dist.barrier()
    answer["freed"] = first.runtime is None and module._buffer is None
    answer["again"] = _functions(module, async_finish)["wrong"]
    return answer


def _functions(module: ModuleType, async_finish: bool) -> dict[str, Any]:
    """Layers of several steps are alive at once; their backwards come in another order."""
    wrong, taken, buffers = [], [], set()
    for step in range(STEPS):
        world = worlds.world_of(step)
        taken.append((step, world, _forward(module, world, async_finish)))
        buffers.add(id(module._buffer))
    for step, world, (leaves, out) in (taken[1], taken[2], taken[0]):
        got = backward(world, leaves, out)
        wrong += [
            f"step {step}: {what}" for what in worlds.differences(got, worlds.expected(world))
        ]
        buffers.add(id(module._buffer))
    ours = isinstance(module._buffer, moewire.deep_ep.Buffer)
    return {"wrong": wrong, "buffers": len(buffers), "ours": ours}


class Leaves:
    """One rank's parts of a world, as autograd's leaves."""

    def __init__(self, world: World) -> None:
        mine = dist.get_rank()
        self.x = world.x[mine].clone().requires_grad_()
        self.weights = [one[mine].clone().requires_grad_() for one in world.topk_weights]
        self.scales = [world.own_scales(layer).requires_grad_() for layer in range(LAYERS)]


def _forward(module: ModuleType, world: World, async_finish: bool) -> tuple[Leaves, torch.Tensor]:
    leaves = Leaves(world)
    return leaves, _layers(module, world, leaves, leaves.x, async_finish)


def _layers(
    module: ModuleType, world: World, leaves: Leaves, out: torch.Tensor, async_finish: bool
) -> torch.Tensor:
    group, how = dist.group.WORLD, (async_finish, async_finish)
    for layer in range(LAYERS):
        ids = world.topk_idx[layer][dist.get_rank()]
        weights = leaves.weights[layer]
        rows, local, received, counts, handle = module.fused_dispatch(
            out, ids, weights, world.num_experts, group, *how
        )
        assert counts.tolist() == counts_of(world, layer), counts
        assert handle is not None
        outputs = worlds.experts(rows, local, received, leaves.scales[layer])
        out, _ = module.fused_combine(outputs, group, handle, *how)
    return out


def counts_of(world: World, layer: int) -> list[int]:
    """Selections of each of this rank's experts."""
    first = dist.get_rank() * LOCAL_EXPERTS
    ids = torch.cat(world.topk_idx[layer])
    return [int((ids == expert).sum()) for expert in range(first, first + LOCAL_EXPERTS)]


def backward(world: World, leaves: Leaves, out: torch.Tensor) -> Gradients:
    out.backward(world.grad_out[dist.get_rank()])
    return Gradients(
        out.detach(),
        worlds.grad_of(leaves.x),
        [worlds.grad_of(one) for one in leaves.weights],
        [worlds.grad_of(one) for one in leaves.scales],
    )


def _replay(module: ModuleType, async_finish: bool) -> dict[str, Any]:
    """A checkpointed block: its replay uses the handles of its forward, without a new routing."""
    world = worlds.world_of(40)
    recorder = module.DispatchReplayRecorder()
    leaves, made = Leaves(world), _count_routings(module._buffer)

    def contexts() -> tuple[Any, Any]:
        scope = module.dispatch_replay_scope
        return scope(recorder, "record"), scope(recorder, "replay")

    out = checkpoint(
        lambda x: _layers(module, world, leaves, x, async_finish),
        leaves.x,
        use_reentrant=False,
        context_fn=contexts,
    )
    recorded = len(made)
    got = backward(world, leaves, out)
    return {
        "wrong": worlds.differences(got, worlds.expected(world)),
        "recorded": recorded,
        "replayed": recorder._cursor,
        "misses": recorder.replay_misses,
        "made": len(made),
    }


def _count_routings(buffer: Any) -> list[int]:
    """Grows with each routing that the buffer makes from now on."""
    made: list[int] = []
    make = buffer._buffer.make_routing

    def counted(*args: Any, **options: Any) -> Any:
        made.append(1)
        return make(*args, **options)

    buffer._buffer.make_routing = counted
    return made


def flex_dispatcher(backend: str, dropped: bool) -> dict[str, Any]:
    """All stages of Megatron's dispatcher, forward and backward, by its own default: async."""
    from megatron.core.transformer.moe import fused_a2a
    from megatron.core.transformer.moe.token_dispatcher import MoEFlexTokenDispatcher

    size, first = dist.get_world_size(), dist.get_rank() * LOCAL_EXPERTS
    config = SimpleNamespace(
        moe_flex_dispatcher_backend=backend,
        moe_router_topk=TOPK,
        num_moe_experts=LOCAL_EXPERTS * size,
        moe_router_dtype="fp32",
        moe_expert_capacity_factor=1.0 if dropped else None,
        moe_permute_fusion=False,
        moe_deepep_num_sms=20,
        moe_hybridep_num_sms=16,
        moe_pad_expert_input_to_capacity=False,
        fp8=None,
        fp4=None,
        moe_router_padding_for_quantization=False,
    )
    groups = SimpleNamespace(ep=dist.group.WORLD, expt_tp=None, tp_ep=dist.group.WORLD)
    own = list(range(first, first + LOCAL_EXPERTS))
    wrong = []
    for step in range(STEPS):
        world = worlds.world_of(step, distinct=True, dropped=dropped)
        layers = [MoEFlexTokenDispatcher(LOCAL_EXPERTS, own, config, groups) for _ in range(LAYERS)]
        leaves = Leaves(world)
        out = leaves.x
        for number, layer in enumerate(layers):
            out = _through(layer, world, leaves, number, out)
        got = backward(world, leaves, out)
        wrong += [
            f"step {step}: {what}" for what in worlds.differences(got, worlds.expected(world))
        ]
    made = fused_a2a._buffer if backend == "deepep" else fused_a2a._hybrid_ep_buffer
    return {"wrong": wrong, "buffer": type(made).__name__, "module": type(made).__module__}


def _through(
    dispatcher: Any, world: World, leaves: Leaves, layer: int, x: torch.Tensor
) -> torch.Tensor:
    ids = world.topk_idx[layer][dist.get_rank()]
    probs = dense(ids, leaves.weights[layer], world.num_experts)
    shape = len(x), 1, HIDDEN  # as Megatron has it: sequence, batch, hidden
    tokens, weights = dispatcher.dispatch_preprocess(x.view(shape), probs > 0, probs)
    rows, weights = dispatcher.token_dispatch(tokens, weights)
    rows, counts, weights = dispatcher.dispatch_postprocess(rows, weights)
    assert counts.tolist() == counts_of(world, layer)
    scales = leaves.scales[layer].repeat_interleave(counts)
    outputs = (rows.float() * (scales * weights).unsqueeze(1)).to(torch.bfloat16)
    back = dispatcher.token_combine(dispatcher.combine_preprocess(outputs))
    out: torch.Tensor = dispatcher.combine_postprocess(back)
    assert out.shape == shape
    return out.view(-1, HIDDEN)


def dense(ids: torch.Tensor, weights: torch.Tensor, experts: int) -> torch.Tensor:
    """[T, E], as the router gives it: 0 where an expert is not selected."""
    probs = torch.zeros(len(ids), experts + 1)
    return probs.scatter(1, torch.where(ids < 0, experts, ids), weights)[:, :experts]


def titan(inference: bool) -> dict[str, Any]:
    """TorchTitan's functions over ``ElasticBuffer``: compact rows with gradients, or expanded."""
    module = deep_ep_preload.titan()
    wrong = []
    for step in range(STEPS):
        world = worlds.world_of(step, distinct=True)
        leaves = Leaves(world)
        with torch.set_grad_enabled(not inference):
            out = leaves.x
            for layer in range(LAYERS):
                out = _titan_layer(module, world, leaves, layer, out, inference)
        want = worlds.expected(world)
        if inference:
            wrong += [] if torch.equal(out.double(), want.out) else [f"step {step}: out"]
            continue
        got = backward(world, leaves, out)
        wrong += [f"step {step}: {what}" for what in worlds.differences(got, want)]
    ours = isinstance(module._buffer, moewire.deep_ep.ElasticBuffer)
    return {"wrong": wrong, "ours": ours, "handles": len(module._handle_cache)}


def _titan_layer(
    module: ModuleType, world: World, leaves: Leaves, layer: int, x: torch.Tensor, expanded: bool
) -> torch.Tensor:
    most = max(len(one) for one in world.x)
    module.get_buffer(dist.group.WORLD, hidden=HIDDEN, num_max_tokens_per_rank=64, num_topk=TOPK)
    rows, counts, state = module.dispatch_tokens(
        x,
        world.topk_idx[layer][dist.get_rank()],
        leaves.weights[layer],
        LOCAL_EXPERTS,
        world.num_experts,
        num_tokens_per_rank=most,
        cudagraphable=expanded,
    )
    assert counts.tolist() == counts_of(world, layer)
    scales = leaves.scales[layer].repeat_interleave(counts)
    outputs = rows.clone()
    outputs[: len(scales)] = (rows[: len(scales)].float() * scales.unsqueeze(1)).to(torch.bfloat16)
    out: torch.Tensor = module.combine_tokens(outputs, state)
    module.sync_combine()
    return out
