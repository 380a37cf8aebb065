"""Layers with known gradients: inputs of all ranks, and what one process makes of them.

The reference computes in float64, token by token.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

import moewire
from moewire import autograd

from .member import Rank

HIDDEN, TOPK, MAX_TOKENS = 24, 2, 12
TIMEOUT_US = 600_000_000  # where lateness is not what is tested


class World(NamedTuple):
    """What all ranks hold, by layer and rank. Every rank makes all of it from the seed."""

    x: list[torch.Tensor]  # bf16 [T, H], by rank
    topk_idx: list[list[torch.Tensor]]  # int64 [T, K], by layer and rank
    topk_weights: list[list[torch.Tensor]]  # float32 [T, K]
    scales: list[torch.Tensor]  # float32 [E], by layer; an expert multiplies its rows
    grad_out: list[torch.Tensor]  # bf16 [T, H]
    flat: bool = False  # which form the operations have

    @property
    def num_experts(self) -> int:
        return len(self.scales[0])


def world_of(
    rank: Rank, flat: bool, exact: bool, layers: int = 2, topk: int = TOPK, salt: int = 0
) -> World:
    """``exact``: numbers so small and even that no rounding happens anywhere."""
    generator = torch.Generator().manual_seed(rank.seed + salt)
    num_experts = 2 * rank.size
    tokens = torch.randint(0, MAX_TOKENS + 1, (rank.size,), generator=generator).tolist()
    tokens[salt % rank.size] = 0 if rank.size > 1 else 5

    def numbers(*shape: int) -> torch.Tensor:
        if exact:
            return torch.randint(-1, 2, shape, generator=generator).float()
        return torch.randn(shape, generator=generator)

    def weights(num_tokens: int) -> torch.Tensor:
        if exact:
            return torch.randint(1, 3, (num_tokens, topk), generator=generator) / 2
        return torch.rand((num_tokens, topk), generator=generator)

    def routing(num_tokens: int) -> torch.Tensor:
        # -1 now and then, and an expert twice in a token
        return torch.randint(-1, num_experts, (num_tokens, topk), generator=generator)

    return World(
        [numbers(t, HIDDEN).to(torch.bfloat16) for t in tokens],
        [[routing(t) for t in tokens] for _ in range(layers)],
        [[weights(t) for t in tokens] for _ in range(layers)],
        [numbers(num_experts) + (2 if exact else 0) for _ in range(layers)],
        [numbers(t, HIDDEN).to(torch.bfloat16) for t in tokens],
        flat,
    )


class Gradients(NamedTuple):
    """What one rank got: of its tokens, its weights by layer, its experts' scales by layer."""

    out: torch.Tensor
    x: torch.Tensor | None
    topk_weights: list[torch.Tensor | None]
    scales: list[torch.Tensor]


def buffer_of(
    rank: Rank, world: World, topk: int = TOPK, name: str = "store", **options: int
) -> moewire.Buffer:
    if world.flat:
        num_bytes = autograd.get_flat_buffer_size_hint(
            MAX_TOKENS, HIDDEN, rank.size, topk, **options
        )
    else:
        num_bytes = autograd.get_ep_buffer_size_hint(
            MAX_TOKENS, HIDDEN, rank.size, world.num_experts, topk, **options
        )
    return rank.buffer(num_bytes, name=name, **options)


def experts(rows: torch.Tensor, counts: list[int], scales: torch.Tensor) -> torch.Tensor:
    of_row = scales.repeat_interleave(torch.tensor(counts)).unsqueeze(1)
    return (rows.float() * of_row).to(torch.bfloat16)


def layer(
    buffer: moewire.Buffer,
    x: torch.Tensor,
    topk_idx: torch.Tensor,
    weights: torch.Tensor,
    scales: torch.Tensor,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    num_experts = buffer.group_size * len(scales)
    rows, routing = autograd.dispatch(
        buffer, x, topk_idx, weights, mask, MAX_TOKENS, num_experts, TIMEOUT_US
    )
    return autograd.combine(experts(rows, routing.counts, scales), routing)


def flat_layer(
    buffer: moewire.Buffer,
    x: torch.Tensor,
    topk_idx: torch.Tensor,
    weights: torch.Tensor,
    scales: torch.Tensor,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """The same, weighted and summed by the experts' rank."""
    num_experts = buffer.group_size * len(scales)
    rows, routing = autograd.dispatch_flat(
        buffer,
        x,
        topk_idx,
        weights,
        MAX_TOKENS,
        num_experts,
        active_ranks=mask,
        timeout_us=TIMEOUT_US,
    )
    # What other ranks' selections are multiplied by must not matter: their weights are 0 here.
    of_row = scales[routing.topk_idx.clamp(min=0)]
    total = (routing.topk_weights * of_row).sum(1, keepdim=True)
    return autograd.combine_flat((rows.float() * total).to(torch.bfloat16), routing)


class Leaves(NamedTuple):
    """One rank's parts of a world, as autograd's leaves."""

    x: torch.Tensor
    weights: list[torch.Tensor]
    scales: list[torch.Tensor]


def leaves_of(rank: Rank, world: World, x_too: bool = True, weights_too: bool = True) -> Leaves:
    own = slice(2 * rank.rank, 2 * rank.rank + 2)
    return Leaves(
        world.x[rank.rank].clone().requires_grad_(x_too),
        [weights[rank.rank].clone().requires_grad_(weights_too) for weights in world.topk_weights],
        [scales[own].clone().requires_grad_() for scales in world.scales],
    )


def forward(
    rank: Rank,
    buffer: moewire.Buffer,
    world: World,
    leaves: Leaves,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    out = leaves.x
    for number, (weights, scales) in enumerate(zip(leaves.weights, leaves.scales, strict=True)):
        one = flat_layer if world.flat else layer
        out = one(buffer, out, world.topk_idx[number][rank.rank], weights, scales, mask)
    return out


def loss(out: torch.Tensor, world: World, rank: Rank) -> torch.Tensor:
    """A number with the world's gradient (a gradient that is given costs torch an import)."""
    return (out.float() * world.grad_out[rank.rank].float()).sum()


def gradients(out: torch.Tensor, leaves: Leaves) -> Gradients:
    weights = [weights.grad for weights in leaves.weights]
    # Autograd leaves None where no row ever came.
    scales = [torch.zeros(2) if one.grad is None else one.grad for one in leaves.scales]
    return Gradients(out.detach(), leaves.x.grad, weights, scales)


def reference(
    rank: Rank,
    world: World,
    lost: int | None = None,
    magnitudes: bool = False,
    backward_lost: int | None = None,
) -> Gradients:
    """This rank's share of one process's gradients, in float64.

    ``lost``: a rank that is away in the forward. ``backward_lost``: a rank that
    gives no gradients of its experts and tokens. ``magnitudes``: sums of absolute values instead.
    """

    def widened(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.double()
        return (tensor.abs() if magnitudes else tensor).clone().requires_grad_()

    x, weights = (
        [widened(one) for one in world.x],
        [list(map(widened, w)) for w in world.topk_weights],
    )
    scales = [widened(one) for one in world.scales]
    out = []
    for r, values in enumerate(x):
        for number, idx in enumerate(world.topk_idx):
            here = idx[r].clone()
            if lost is not None:
                here[here // 2 == lost] = -1
            # 0 where nothing is selected; a gradient of a lost rank does not go further.
            factor = (here >= 0).double() * scales[number][here.clamp(min=0)]
            terms = weights[number][r] * factor
            if backward_lost is not None:
                terms = torch.where(here // 2 == backward_lost, terms.detach(), terms)
            parts = values.unsqueeze(1)
            if backward_lost is not None:
                gone = (here // 2 == backward_lost).unsqueeze(2)
                parts = torch.where(gone, parts.detach(), parts)
            values = (terms.unsqueeze(2) * parts).sum(1)
        out.append(values)
    away = {lost, backward_lost}
    for r, gradient in enumerate(world.grad_out):
        if r not in away:
            out[r].backward(gradient.double().abs() if magnitudes else gradient.double())
    mine = slice(2 * rank.rank, 2 * rank.rank + 2)

    def of(tensor: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad

    return Gradients(
        out[rank.rank].detach(),
        of(x[rank.rank]),
        [of(one[rank.rank]) for one in weights],
        [of(one)[mine] for one in scales],
    )


def pairs(got: Gradients, want: Gradients) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    found = [("out", got.out, want.out)]
    if got.x is not None and want.x is not None:
        found.append(("x", got.x, want.x))
    for number, (mine, theirs) in enumerate(zip(got.topk_weights, want.topk_weights, strict=True)):
        if mine is not None and theirs is not None:
            found.append((f"weights of layer {number}", mine, theirs))
    for number, (mine, theirs) in enumerate(zip(got.scales, want.scales, strict=True)):
        found.append((f"scales of layer {number}", mine, theirs))
    return found


def same(got: Gradients, want: Gradients) -> None:
    for what, mine, theirs in pairs(got, want):
        assert torch.equal(mine.double(), theirs), (what, mine, theirs)
