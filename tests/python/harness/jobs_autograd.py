"""Jobs about gradients, against one process in float64."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch

import moewire
from moewire import autograd

from .autograd_world import (
    HIDDEN,
    MAX_TOKENS,
    TIMEOUT_US,
    TOPK,
    Gradients,
    World,
    buffer_of,
    flat_layer,
    forward,
    gradients,
    layer,
    leaves_of,
    loss,
    pairs,
    reference,
    same,
    world_of,
)
from .jobs_input import expect
from .jobs_selections import TYPES
from .member import Rank


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
    os.environ["MOEWIRE_TEST_CORRUPT"] = "1"
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


def other_types(rank: Rank, flat: bool) -> None:
    """Ids and weights as routers make them: gradients of the same numbers, in the weights' dtype.

    Where nothing is rounded, those of one process; else, the bits of int64 and float32, rounded.
    """
    for exact in (True, False):
        for ids, weights in TYPES:
            world = world_of(rank, flat, exact)
            narrow = [[one.to(weights) for one in layer] for layer in world.topk_weights]
            world = world._replace(topk_weights=[[one.float() for one in w] for w in narrow])
            listed = [[one.to(ids) for one in layer] for layer in world.topk_idx]
            given = world._replace(topk_weights=narrow, topk_idx=listed)
            with buffer_of(rank, world, name=f"store-{exact}-{ids}-{weights}") as buffer:
                got = trained(rank, buffer, given)
                want = reference(rank, world) if exact else trained(rank, buffer, world)
                rank.meet(f"end-{exact}-{ids}-{weights}")
            assert all(one is not None and one.dtype is weights for one in got.topk_weights)
            rounded = [one if one is None else one.to(weights) for one in want.topk_weights]
            want = want._replace(topk_weights=rounded)
            same(got, Gradients(*(_doubled(one) for one in want)))


def trained(rank: Rank, buffer: moewire.Buffer, world: World) -> Gradients:
    leaves = leaves_of(rank, world)
    out = forward(rank, buffer, world, leaves)
    loss(out, world, rank).backward()
    return gradients(out, leaves)


def _doubled(one: Any) -> Any:
    return [_doubled(each) for each in one] if isinstance(one, list) else one.double()


def lost(rank: Rank, flat: bool) -> None:
    """A rank dies between forward and backward; the others' step ends, and so does the next."""
    world = world_of(rank, flat, exact=True, salt=1)
    mask, killed = torch.ones(rank.size, dtype=torch.int32), rank.size - 1
    buffer = buffer_of(rank, world)
    leaves = leaves_of(rank, world)
    out = forward(rank, buffer, world, leaves, mask)
    assert mask.tolist() == [1] * rank.size
    rank.meet("forward")
    if rank.rank == killed:
        os.kill(os.getpid(), signal.SIGKILL)
    loss(out, world, rank).backward()
    assert mask.tolist() == [1] * killed + [0]
    same(gradients(out, leaves), reference(rank, world, backward_lost=killed))
    leaves = leaves_of(rank, world)
    out = forward(rank, buffer, world, leaves, mask)
    loss(out, world, rank).backward()
    same(gradients(out, leaves), reference(rank, world, lost=killed))
    rank.meet_some("end", list(range(killed)))
    buffer.close()


def parts_of_the_graph(rank: Rank, flat: bool) -> None:
    """Gradients of some leaves only, a graph used twice, and rows that are not combined."""
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
    """A dispatch with its rows as the loss: each selected expert adds one to a token's gradient."""
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
    """Gradients of experts: their sums run over rows of all ranks that come in any order."""
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


class _Fails(torch.autograd.Function):
    """Experts that change nothing and raise in their backward."""

    @staticmethod
    def forward(ctx, rows):
        return rows.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ArithmeticError("of the experts")


def failing_layer(rank: Rank, buffer: moewire.Buffer, world: World, fails: bool) -> torch.Tensor:
    """One layer; its experts' backward raises where ``fails``."""
    leaves = leaves_of(rank, world)
    idx, weights = world.topk_idx[0][rank.rank], leaves.weights[0]
    if world.flat:
        rows, routing = autograd.dispatch_flat(
            buffer, leaves.x, idx, weights, MAX_TOKENS, world.num_experts, timeout_us=TIMEOUT_US
        )
        return autograd.combine_flat(_Fails.apply(rows) if fails else rows.clone(), routing)
    rows, routing = autograd.dispatch(
        buffer, leaves.x, idx, weights, None, MAX_TOKENS, world.num_experts, TIMEOUT_US
    )
    return autograd.combine(_Fails.apply(rows) if fails else rows.clone(), routing)


def experts_that_raise(rank: Rank, flat: bool, everywhere: bool) -> None:
    """If a rank's experts raise, ranks that wait for it are told, though its graph is kept."""
    kept = []
    fails = everywhere or rank.rank == 0
    kind = ArithmeticError if fails else moewire.NotCombinedError
    world = world_of(rank, flat, exact=True, layers=1, salt=1)
    for source, idx in enumerate(world.topk_idx[0]):  # every rank waits for rank 0's experts
        idx[:, 0] = source % 2
    with buffer_of(rank, world, num_slots=1) as buffer:
        for step in range(3):
            out = failing_layer(rank, buffer, world, fails)
            value = loss(out, world, rank)
            if kind is ArithmeticError or out.numel():
                expect(kind, value.backward)
            else:
                value.backward()  # it has no tokens, and so waits for no experts
            kept.append(value)
            rank.meet(f"raised{step}")  # before a next dispatch takes the slot
        leaves = leaves_of(rank, world)
        loss(forward(rank, buffer, world, leaves), world, rank).backward()
        assert leaves.x.grad is not None
        want = reference(rank, world)
        assert want.x is not None and torch.equal(leaves.x.grad.double(), want.x)
        del kept[1]
        rank.meet("end")
