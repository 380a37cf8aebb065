"""Layers of experts with results that need no rounding, and what one process makes of them.

Numbers are small multiples of powers of two, so sums are the same in any order and in bf16: what a
client computes must be equal to autograd over all ranks' tokens in one process.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist

HIDDEN, TOPK, LOCAL_EXPERTS, LAYERS = 32, 2, 3, 2


class World(NamedTuple):
    """By rank: x and grad_out bf16 [T, H]. By layer and rank: ids [T, K], weights float32 [T, K].
    By layer: scales [E], with which an expert multiplies its rows."""

    x: list[torch.Tensor]
    grad_out: list[torch.Tensor]
    topk_idx: list[list[torch.Tensor]]
    topk_weights: list[list[torch.Tensor]]
    scales: list[torch.Tensor]

    @property
    def num_experts(self) -> int:
        return len(self.scales[0])

    def own_scales(self, layer: int) -> torch.Tensor:
        first = dist.get_rank() * LOCAL_EXPERTS
        return self.scales[layer][first : first + LOCAL_EXPERTS].clone()


def world_of(seed: int, distinct: bool = False, dropped: bool = True) -> World:
    """The same on every rank; other numbers of tokens on each, none on the second of more.

    ``distinct``: no expert twice in a token. ``dropped``: some selections are -1.
    """
    generator = torch.Generator().manual_seed(seed)
    size = dist.get_world_size()
    experts = LOCAL_EXPERTS * size

    def numbers(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high + 1, shape, generator=generator)

    def ids_of(t: int) -> torch.Tensor:
        ids = numbers(0, experts - 1, t, TOPK)
        if distinct:
            ids = torch.rand(t, experts, generator=generator).argsort(1)[:, :TOPK]
        drop = torch.rand(t, TOPK, generator=generator) < (0.2 if dropped else 0)
        return ids.masked_fill(drop, -1)

    tokens = [0 if r == 1 and size > 2 else 5 + 7 * r for r in range(size)]
    return World(
        [numbers(-1, 1, t, HIDDEN).to(torch.bfloat16) for t in tokens],
        [numbers(-1, 1, t, HIDDEN).to(torch.bfloat16) for t in tokens],
        [[ids_of(t) for t in tokens] for _ in range(LAYERS)],
        [[numbers(1, 2, t, TOPK) / 2 for t in tokens] for _ in range(LAYERS)],
        [numbers(1, 2, experts).float() for _ in range(LAYERS)],
    )


class Gradients(NamedTuple):
    """One rank's: of its tokens, of its weights by layer, of its experts' scales by layer."""

    out: torch.Tensor
    x: torch.Tensor
    weights: list[torch.Tensor]
    scales: list[torch.Tensor]


def expected(world: World) -> Gradients:
    """This rank's, by autograd over all ranks' tokens in float64."""
    mine, first = dist.get_rank(), dist.get_rank() * LOCAL_EXPERTS
    scales = [one.double().requires_grad_() for one in world.scales]
    outs, xs, weights = [], [], []
    for rank, x in enumerate(world.x):
        xs.append(x.double().requires_grad_())
        weights.append([one[rank].double().requires_grad_() for one in world.topk_weights])
        out = xs[-1]
        for layer in range(LAYERS):
            ids = world.topk_idx[layer][rank]
            factors = weights[-1][layer] * scales[layer][ids.clamp(min=0)] * (ids >= 0)
            out = factors.sum(1, keepdim=True) * out
        outs.append(out)
        out.backward(world.grad_out[rank].double())
    own = slice(first, first + LOCAL_EXPERTS)
    return Gradients(
        outs[mine].detach(),
        grad_of(xs[mine]),
        [grad_of(one) for one in weights[mine]],
        [grad_of(one)[own] for one in scales],
    )


def grad_of(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


def differences(got: Gradients, want: Gradients) -> list[str]:
    """What is not equal."""
    pairs = {"out": (got.out, want.out), "grad of x": (got.x, want.x)}
    for layer in range(LAYERS):
        pairs[f"grad of weights {layer}"] = got.weights[layer], want.weights[layer]
        pairs[f"grad of scales {layer}"] = got.scales[layer], want.scales[layer]
    return [name for name, (one, other) in pairs.items() if not torch.equal(one.double(), other)]


def experts(
    rows: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """A rank's experts on received rows: outputs weighted and summed, bf16 [N, H]."""
    factors = weights * scales[ids.clamp(min=0)] * (ids >= 0)
    return (rows.float() * factors.sum(1, keepdim=True)).to(torch.bfloat16)
