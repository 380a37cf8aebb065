"""Gradients over the emulated device: jobs for the CPU, and both devices side by side."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

import moewire
from moewire import autograd
from moewire.autograd import _flat

from . import autograd_world as worlds
from . import jobs_cuda
from .jobs_input import expect
from .member import Rank
from .on_cuda import current_device, folder_of


class OnCuda(Rank):
    """A rank with its buffers on CUDA."""

    def buffer(self, num_bytes: int = 0, **options: Any) -> moewire.Buffer:
        return super().buffer(num_bytes, device="cuda", **options)


def over_device(rank: Rank, driver: str, job: Callable[..., Any], *args: Any) -> Any:
    """A job for the CPU, with its buffers on the emulated device."""
    _import_on_every_rank(rank)
    with current_device(driver, folder_of(rank.folder, rank.rank)) as place:
        answer = job(OnCuda(rank.rank, rank.size, rank.folder, rank.seed), *args)
        place.synchronize_all()
        return answer


def _import_on_every_rank(rank: Rank) -> None:
    """What torch imports for the first gradient that is given, however long each rank takes."""
    torch.zeros((), requires_grad=True).backward(torch.ones(()))
    for _ in range(4):
        with suppress(TimeoutError):
            return rank.meet("imported")
    return rank.meet("imported")


def same_as_cpu(rank: Rank, driver: str, flat: bool) -> None:
    """Two layers of random numbers on either device: every bit of rows and of their gradients.

    The gradients of weights and of scales are sums over a row or over rows, by torch's own kernels:
    on a device these may add in another order.
    """
    found = [_gradients(rank, "cpu", flat), over_device(rank, driver, _gradients, "cuda", flat)]
    for step, (ours, theirs) in enumerate(zip(*found, strict=True)):
        for what, one, other in worlds.pairs(ours, theirs):
            assert one.dtype is other.dtype
            bits = [tensor.cpu().contiguous().view(torch.uint8) for tensor in (one, other)]
            if driver or what in ("out", "x"):
                assert torch.equal(*bits), (step, what, one, other)
            else:
                torch.testing.assert_close(one, other.cpu(), rtol=1e-5, atol=1e-5)


def _gradients(rank: Rank, name: str, flat: bool) -> list[worlds.Gradients]:
    found = []
    for salt in range(3):
        world = worlds.world_of(rank, flat, exact=False, salt=salt)
        with worlds.buffer_of(rank, world, name=f"{name}{salt}") as buffer:
            assert buffer.runtime.drives is (name != "cuda")
            leaves = worlds.leaves_of(rank, world)
            out = worlds.forward(rank, buffer, world, leaves)
            worlds.loss(out, world, rank).backward()
            found.append(worlds.gradients(out, leaves))
            rank.meet(f"{name}{salt}")
    return found


def more_rounds(rank: Rank) -> None:
    """All ranks learn that one will dispatch again, and that none will."""
    current = torch.device("cuda", 0)
    x = torch.ones((1, 16), dtype=torch.bfloat16, device=current).requires_grad_()
    idx = torch.zeros((1, 1), dtype=torch.int64, device=current)
    weights = torch.ones((1, 1), device=current)
    size = autograd.get_ep_buffer_size_hint(4, 16, rank.size, 2, 1)
    with rank.buffer(size) as buffer:
        for last in (False, True):
            more = rank.rank == 1 and not last
            _, routing = autograd.dispatch(buffer, x, idx, weights, None, 4, 2, -1, more=more)
            assert routing.peers_have_more is not last
            _, flat = autograd.dispatch_flat(buffer, x, idx, weights, 4, 2, more=more)
            assert flat.peers_have_more is not last
            del _, routing, flat  # never combined: their slots are free again
        rank.meet("end")


class _Held:
    """Stands for a handle."""

    def _release(self) -> None:
        """What is dropped without a combine releases it."""


def refused(place: jobs_cuda.Place, make: jobs_cuda.Make, rank: int, seed: int) -> None:
    """Refused by name, before anything is sent."""
    idx = place.put(torch.zeros((1, 1), dtype=torch.int64))
    weights = place.put(torch.ones((1, 1)))
    x = place.put(torch.ones((1, 16)).bfloat16()).requires_grad_()
    size = autograd.get_ep_buffer_size_hint(4, 16, 1, 2, 1)
    with make(size, device="cuda") as buffer:

        def dispatch(x: torch.Tensor = x, **options: Any) -> Any:
            return autograd.dispatch(buffer, x, idx, weights, None, 4, 2, -1, **options)

        def dispatch_flat(x: torch.Tensor = x, **options: Any) -> Any:
            return autograd.dispatch_flat(buffer, x, idx, weights, 4, 2, **options)

        for one in (dispatch, dispatch_flat):
            text = expect(moewire.InvalidArgument, lambda one=one: one(x.detach().cpu()))
            assert "device cpu given; allowed: device cuda:0" in text
        stream = place.side()
        call = autograd._Call(buffer, None, 4, 2, -1)
        routing = autograd.Routing(call, idx, weights)  # as of a dispatch before the capture
        routing._handle = held = _Held()  # type: ignore[assignment]
        flat_call = _flat.FlatCall(buffer, None, 4, 2, -1)
        flat_routing = autograd.FlatRouting(flat_call)
        flat_routing._handle = held  # type: ignore[assignment]
        with place.on(stream), place.captured(stream) as graph:
            for late in (
                dispatch,
                lambda: autograd.combine(x, routing),
                lambda: call.send(x.detach(), idx),
                dispatch_flat,
                lambda: autograd.combine_flat(x, flat_routing),
                lambda: flat_call.send(x.detach(), held),  # type: ignore[arg-type]
            ):
                text = expect(moewire.UnsupportedError, late)
                assert "captured into a graph" in text
        assert routing._handle is held is flat_routing._handle  # to be combined afterwards
        place.destroy(graph[0])
        place.synchronize()
        assert buffer.members() == [0]


def kept(place: jobs_cuda.Place, make: jobs_cuda.Make, rank: int, seed: int) -> None:
    """A flat graph keeps handles, and no memory of the workspace with them."""
    idx = place.put(torch.tensor([[0, 1], [1, -1]]))
    weights = place.put(torch.tensor([[1.0, 2.0], [3.0, 4.0]])).requires_grad_()
    x = place.put(torch.ones((2, 16)).bfloat16()).requires_grad_()
    buffer = make(autograd.get_flat_buffer_size_hint(4, 16, 1, 2), device="cuda")
    rows, routing = autograd.dispatch_flat(buffer, x, idx, weights, 4, 2)
    y = (rows.float() * routing.topk_weights.sum(1, keepdim=True)).bfloat16()
    out = autograd.combine_flat(y, routing)
    place.synchronize()
    buffer.close()
    gc.collect()
    left = place.left()
    assert not any("allocation" in line or "range" in line for line in left), left
    assert out.float().sum().item() == 16 * 3 + 16 * 3  # the graph lives
