"""What the ranks do with clients of HybridEP, unchanged. Each job answers with plain values."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import deep_ep_preload
import deep_ep_world as worlds
import torch
import torch.distributed as dist
from deep_ep_jobs import STEPS, Leaves, backward, counts_of, dense
from deep_ep_world import LAYERS, LOCAL_EXPERTS, World
from torch.utils.checkpoint import checkpoint

import moewire.deep_ep


def nemo(pad: int | None) -> dict[str, Any]:
    """NeMo Automodel's, and a checkpointed block; its replay uses the handles of its forward."""
    module = deep_ep_preload.nemo()
    torch.cuda.synchronize = lambda *_: None  # it does so after its first call
    wrong = _steps(lambda world, leaves, x: _nemo(module, world, leaves, x, pad))
    world = worlds.world_of(40, distinct=True)
    leaves, recorder = Leaves(world), module.HybridEPDispatchReplayRecorder()

    def contexts() -> tuple[Any, Any]:
        scope = module.hybridep_dispatch_replay_scope
        return scope(recorder, "record"), scope(recorder, "replay")

    out = checkpoint(
        lambda x: _nemo(module, world, leaves, x, pad),
        leaves.x,
        use_reentrant=False,
        context_fn=contexts,
    )
    recorder.finalize()
    got = backward(world, leaves, out)
    wrong += [f"replay: {what}" for what in worlds.differences(got, worlds.expected(world))]
    return {
        "wrong": wrong,
        "replayed": recorder._cursor,
        "misses": recorder.replay_misses,
        "ours": isinstance(module._hybrid_ep_buffer, moewire.deep_ep.HybridEPBuffer),
    }


def titan(room: float | None) -> dict[str, Any]:
    """TorchTitan's. ``room``: in how many times the rows of this rank's tokens; None: exactly."""
    module = deep_ep_preload.titan_hybrid()
    wrong = _steps(lambda world, leaves, x: _titan(module, world, leaves, x, room), dropped=False)
    ours = isinstance(module._buffer, moewire.deep_ep.HybridEPBuffer)
    return {"wrong": wrong, "ours": ours}


def _steps(
    forward: Callable[[World, Leaves, torch.Tensor], torch.Tensor], dropped: bool = True
) -> list[str]:
    """Layers of several steps are alive at once; their backwards come in another order."""
    wrong, taken = [], []
    for step in range(STEPS):
        world = worlds.world_of(step, distinct=True, dropped=dropped)
        leaves = Leaves(world)
        taken.append((step, world, leaves, forward(world, leaves, leaves.x)))
    for step, world, leaves, out in (taken[1], taken[2], taken[0]):
        got = backward(world, leaves, out)
        want = worlds.expected(world)
        wrong += [f"step {step}: {what}" for what in worlds.differences(got, want)]
    return wrong


def _nemo(
    module: ModuleType, world: World, leaves: Leaves, x: torch.Tensor, pad: int | None
) -> torch.Tensor:
    for layer in range(LAYERS):
        ids = world.topk_idx[layer][dist.get_rank()]
        rows, probs, _, counts, handle = module.hybrid_ep_dispatch(
            x,
            None,
            dense(ids, leaves.weights[layer], world.num_experts),
            dist.group.WORLD,
            LOCAL_EXPERTS,
            pad_multiple=pad,
            topk_idx=ids,
            num_experts=world.num_experts,
        )
        outputs = _experts(world, leaves, layer, rows, counts, pad) * probs.unsqueeze(1)
        x = module.hybrid_ep_combine(outputs.to(torch.bfloat16), handle, None, pad)
    return x


def _titan(
    module: ModuleType, world: World, leaves: Leaves, x: torch.Tensor, room: float | None
) -> torch.Tensor:
    most = max(len(one) for one in world.x)
    module.get_buffer(dist.group.WORLD, worlds.HIDDEN, most, LOCAL_EXPERTS)
    for layer in range(LAYERS):
        rows, counts, state = module.dispatch_tokens(
            x,
            world.topk_idx[layer][dist.get_rank()],
            leaves.weights[layer],
            LOCAL_EXPERTS,
            world.num_experts,
            dist.group.WORLD,
            non_blocking_expert_capacity_factor=room,
        )
        outputs = _experts(world, leaves, layer, rows, counts, None)
        x = module.combine_tokens(outputs.to(torch.bfloat16), state)
    return x


def _experts(
    world: World,
    leaves: Leaves,
    layer: int,
    rows: torch.Tensor,
    counts: torch.Tensor,
    pad: int | None,
) -> torch.Tensor:
    """float32 [rows, H], without the router's weights."""
    own = [-(-count // (pad or 1)) * (pad or 1) for count in counts_of(world, layer)]
    assert counts.tolist() == own, (counts, own)
    scales = leaves.scales[layer].repeat_interleave(counts)
    room = len(rows) - len(scales)
    scales = torch.cat([scales, torch.zeros(room)])
    return rows.float() * scales.unsqueeze(1)
