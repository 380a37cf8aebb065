"""Jobs about gradients. The reference computes in float64, in one process, token by token."""

from __future__ import annotations

import os
import signal
import time
from typing import NamedTuple

import torch

import moewire
from moewire import autograd

from .jobs_input import expect
from .member import Rank

HIDDEN, TOPK, MAX_TOKENS, TIMEOUT_US = 24, 2, 12, 30_000_000


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


def buffer_of(rank: Rank, world: World, topk: int = TOPK, **options: int) -> moewire.Buffer:
    if world.flat:
        num_bytes = autograd.get_flat_buffer_size_hint(
            MAX_TOKENS, HIDDEN, rank.size, topk, **options
        )
    else:
        num_bytes = autograd.get_ep_buffer_size_hint(
            MAX_TOKENS, HIDDEN, rank.size, world.num_experts, topk, **options
        )
    return rank.buffer(num_bytes, **options)


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
    """A number whose gradient is the world's (a gradient that is given costs torch an import)."""
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

    ``lost``: a rank that is away in the forward. ``backward_lost``: one whose experts' and
    tokens' gradients are missing. ``magnitudes``: sums of absolute values instead.
    """

    def wide(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.double()
        return (tensor.abs() if magnitudes else tensor).clone().requires_grad_()

    x, weights = [wide(one) for one in world.x], [list(map(wide, w)) for w in world.topk_weights]
    scales = [wide(one) for one in world.scales]
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


def exact(rank: Rank, flat: bool, num_slots: int, topk: int) -> None:
    """Two layers, several steps: no rounding anywhere, so every bit must be right."""
    os.environ["MOEWIRE_DEBUG"] = "1"  # memory that is released becomes NaN
    first = world_of(rank, flat, exact=True, topk=topk)
    with buffer_of(rank, first, topk, num_slots=num_slots) as buffer:
        for step in range(4):
            world = world_of(rank, flat, exact=True, topk=topk, salt=step)
            # On some ranks nothing before the layer needs a gradient; they take part all the same.
            place = (rank.rank + step) % 3
            leaves = leaves_of(rank, world, x_too=place == 0, weights_too=place != 1)
            time.sleep(0.003 * ((rank.rank + step) % rank.size))  # rows come in other orders
            out = forward(rank, buffer, world, leaves)
            time.sleep(0.003 * ((rank.rank * 2 + step) % rank.size))
            loss(out, world, rank).backward()
            same(gradients(out, leaves), reference(rank, world))
        counters = buffer.counters()
        assert counters["num_dispatches"] == counters["num_combines"] == 4 * 4, counters
        rank.meet("end")


def checkpointed(rank: Rank, flat: bool, reentrant: bool) -> None:
    """Each layer runs again in the backward: rows come in yet another order."""
    from torch.utils.checkpoint import checkpoint  # torch loads much for its sake

    os.environ["MOEWIRE_DEBUG"] = "1"
    world = world_of(rank, flat, exact=True)
    with buffer_of(rank, world) as buffer:
        leaves = leaves_of(rank, world)
        out, one = leaves.x, flat_layer if flat else layer
        for number, (weights, scales) in enumerate(zip(leaves.weights, leaves.scales, strict=True)):
            idx = world.topk_idx[number][rank.rank]
            out = checkpoint(one, buffer, out, idx, weights, scales, use_reentrant=reentrant)
        time.sleep(0.003 * rank.rank)
        loss(out, world, rank).backward()
        same(gradients(out, leaves), reference(rank, world))
        counters = buffer.counters()
        assert counters["num_dispatches"] == counters["num_combines"] == 3 * 2, counters
        rank.meet("end")


def corrupted(rank: Rank, flat: bool) -> None:
    """A test of these tests: a bit that is flipped in each combine is noticed."""
    os.environ["MOEWIRE_TEST_CORRUPT"] = "combine"
    world = world_of(rank, flat, exact=True, salt=rank.size - 1)
    world = world._replace(x=[torch.ones_like(x) for x in world.x])
    with buffer_of(rank, world) as buffer:
        x = world.x[rank.rank].requires_grad_()
        idx, weights = world.topk_idx[0][rank.rank], world.topk_weights[0][rank.rank]
        one = flat_layer if flat else layer
        loss(one(buffer, x, idx, weights, torch.ones(2)), world, rank).backward()
        rank.meet("end")
    want = reference(
        rank,
        world._replace(
            scales=[torch.ones(2 * rank.size)],
            topk_idx=world.topk_idx[:1],
            topk_weights=world.topk_weights[:1],
        ),
    )
    assert x.grad is not None
    assert not x.numel() or not torch.equal(x.grad.double(), want.x)


def bounded(rank: Rank, flat: bool) -> None:
    """One layer of random numbers: as close as the roundings on the way allow.

    u = 2**-8 is bf16's, v = 2**-24 float32's. Each bound is relative to the sum of magnitudes.
    Experts multiply by powers of two, so that they round nothing themselves.
    """
    u, v = 2.0**-8, 2.0**-24
    once, exact_sum = u + 8 * v, (HIDDEN + 8) * v
    twice = (1 + once) ** 2 - 1
    bounds = {
        "out": twice if flat else once,  # flat: each rank's sum, then the sum of those
        "x": twice,  # gradient of y (flat: of rows), then their sum
        "weights of layer 0": exact_sum,  # a float32 dot product, brought back as it is
        # The gradient of y, then a float32 sum over rows and hidden values.
        "scales of layer 0": once + (rank.size * MAX_TOKENS * HIDDEN + 8) * v,
    }
    for salt in range(3):
        world = world_of(rank, flat, exact=False, layers=1, salt=salt)
        world = world._replace(scales=[one.sign() * 2.0 ** one.round() for one in world.scales])
        with buffer_of(rank, world) as buffer:
            leaves = leaves_of(rank, world)
            out = forward(rank, buffer, world, leaves)
            loss(out, world, rank).backward()
            rank.meet(f"end{salt}")
        got, want = gradients(out, leaves), reference(rank, world)
        sizes = reference(rank, world, magnitudes=True)
        for (what, mine, theirs), (_, size, _) in zip(
            pairs(got, want), pairs(sizes, sizes), strict=True
        ):
            excess = (mine.double() - theirs).abs() - bounds[what] * size
            assert not excess.numel() or excess.max() <= 0, (what, excess.max())


def lost(rank: Rank, flat: bool) -> None:
    """A rank dies between forward and backward; the others' step ends, and so does the next."""
    world = world_of(rank, flat, exact=True, salt=1)
    mask, victim = torch.ones(rank.size, dtype=torch.int32), rank.size - 1
    buffer = buffer_of(rank, world)
    leaves = leaves_of(rank, world)
    out = forward(rank, buffer, world, leaves, mask)
    assert mask.tolist() == [1] * rank.size
    rank.meet("forward")
    if rank.rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    loss(out, world, rank).backward()
    assert mask.tolist() == [1] * victim + [0]
    same(gradients(out, leaves), reference(rank, world, backward_lost=victim))
    leaves = leaves_of(rank, world)
    out = forward(rank, buffer, world, leaves, mask)
    loss(out, world, rank).backward()
    same(gradients(out, leaves), reference(rank, world, lost=victim))
    rank.meet_some("end", list(range(victim)))
    buffer.close()


def parts_of_the_graph(rank: Rank, flat: bool) -> None:
    """Gradients of some leaves only, a graph used twice, and rows that nobody combines."""
    world = world_of(rank, flat, exact=True)
    want = reference(rank, world)
    with buffer_of(rank, world) as buffer:
        kept = []
        for _ in range(5):  # more than there are slots
            leaves = leaves_of(rank, world)
            out = forward(rank, buffer, world, leaves)
            # Through the first layer's combine, and not through its dispatch.
            (found,) = torch.autograd.grad(
                loss(out, world, rank), leaves.scales[:1], retain_graph=True, allow_unused=True
            )
            found = torch.zeros(2) if found is None else found
            assert torch.equal(found.double(), want.scales[0])
            kept.append((out, leaves))
        for out, leaves in kept:
            loss(out, world, rank).backward(retain_graph=True)
            same(gradients(out, leaves), want)
        if not flat:
            alone(rank, buffer, world)
        rank.meet("end")


def alone(rank: Rank, buffer: moewire.Buffer, world: World) -> None:
    """A dispatch whose rows are the loss: each selected expert adds one to a token's gradient."""
    x = world.x[rank.rank].clone().requires_grad_()
    idx = world.topk_idx[0][rank.rank]
    weights = world.topk_weights[0][rank.rank]
    rows, routing = autograd.dispatch(
        buffer, x, idx, weights, None, MAX_TOKENS, world.num_experts, TIMEOUT_US
    )
    del routing
    rows.sum().backward()
    distinct = [len({e for e in token if e >= 0}) for token in idx.tolist()]
    want = torch.tensor(distinct, dtype=torch.float64).reshape(-1, 1).expand(-1, HIDDEN)
    assert x.grad is not None and torch.equal(x.grad.double(), want)


def same_bits_again(rank: Rank, flat: bool) -> list[bytes]:
    """Gradients of experts, whose sums run over rows of all ranks that come in any order."""
    found = []
    world = world_of(rank, flat, exact=False, salt=3)
    with buffer_of(rank, world) as buffer:
        for number in range(6):
            leaves = leaves_of(rank, world)
            time.sleep(0.004 * ((rank.rank + number) % rank.size))
            out = forward(rank, buffer, world, leaves)
            loss(out, world, rank).backward()
            found.append(b"".join(one.grad.numpy().tobytes() for one in leaves.scales))
        rank.meet("end")
    return found


def refusals(rank: Rank) -> None:
    """Errors in the forward, before anything was sent."""
    world = world_of(rank, False, exact=True)
    idx, weights = torch.zeros((1, TOPK), dtype=torch.int64), torch.ones((1, TOPK))
    x = torch.zeros((1, HIDDEN), dtype=torch.bfloat16, requires_grad=True)
    too_small(rank, world)

    def dispatch(buffer: moewire.Buffer, x: torch.Tensor = x, weights: torch.Tensor = weights):
        return autograd.dispatch(
            buffer, x, idx, weights, None, MAX_TOKENS, world.num_experts, TIMEOUT_US
        )

    with buffer_of(rank, world, num_slots=3) as buffer:
        for wrong in (weights.double(), weights[:, :1]):
            error = expect(moewire.InvalidArgument, lambda w=wrong: dispatch(buffer, weights=w))
            assert "topk_weights" in str(error)
        error = expect(moewire.InvalidArgument, lambda: dispatch(buffer, x.float()))
        assert "x: dtype" in str(error)
        rows, routing = dispatch(buffer)
        assert rows.requires_grad
        error = expect(moewire.InvalidArgument, lambda: autograd.combine(rows.float(), routing))
        assert "y: dtype" in str(error)
        error = expect(moewire.InvalidArgument, lambda: autograd.combine(rows, routing.counts))
        assert "routing" in str(error)
        out = autograd.combine(rows, routing)
        error = expect(moewire.InvalidArgument, lambda: autograd.combine(rows, routing))
        assert "combined" in str(error)
        (first,) = torch.autograd.grad(out.pow(2).sum(), x, create_graph=True)
        error = expect(RuntimeError, lambda: first.sum().backward())
        assert "once_differentiable" in str(error), error
        rank.meet("end")


def too_small(rank: Rank, world: World) -> None:
    """A buffer for forwards only says so in the forward."""
    hidden, num_max = 1024, 4096  # sizes are whole pages of 2 MiB
    shape = (num_max, hidden, rank.size, world.num_experts)
    small = moewire.Buffer.get_ep_buffer_size_hint(*shape)
    x, idx = torch.ones((1, hidden), dtype=torch.bfloat16), torch.zeros((1, 1), dtype=torch.int64)
    with rank.buffer(small) as buffer:

        def dispatch():
            weights = torch.ones((1, 1))
            return autograd.dispatch(
                buffer, x, idx, weights, None, num_max, world.num_experts, TIMEOUT_US
            )

        text = str(expect(moewire.InvalidArgument, dispatch))
        assert "get_ep_buffer_size_hint" in text and str(small) in text, text
        with torch.no_grad():  # no backward: it fits
            rows, routing = dispatch()
            assert torch.equal(autograd.combine(rows, routing), x)
            assert not rows.requires_grad
        rank.meet("small")
