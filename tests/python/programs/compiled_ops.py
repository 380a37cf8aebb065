"""moewire.ops in one graph: two ranks, forward and backward, against plain torch in one process.

    compiled_ops.py BACKEND LAYER ...

Numbers are so small and even that nothing is rounded anywhere: every bit must be right. Runs in
this repository's environment and, by hand, in those of older versions of torch.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

import moewire
from moewire import autograd, ops
from moewire.ops import _tables

RANKS, MOST, HIDDEN, EXPERTS, TOPK, LAYERS = 2, 8, 16, 4, 2, 2
LOCAL = EXPERTS // RANKS
TIMEOUT_US = 60_000_000
# Tokens of each rank: T becomes a symbol, which 0 is not.
TOKENS = ((6, 3), (5, 8), (4, 0))


class Leaves(NamedTuple):
    """What is learned: x [T, H], and by layer weights [T, K] and factors of experts [L]."""

    x: torch.Tensor
    weights: tuple[torch.Tensor, ...]
    scales: tuple[torch.Tensor, ...]


Ids = tuple[torch.Tensor, ...]  # [T, K] by layer
Layer = Callable[..., torch.Tensor]


def drawn(tokens: tuple[int, ...], step: int) -> tuple[list[Leaves], list[Ids], list[torch.Tensor]]:
    """Leaves, ids and the gradients of results, of all ranks."""
    random = torch.Generator().manual_seed(step)

    def numbers(low: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, 2, shape, generator=random).float()

    leaves = [
        Leaves(
            numbers(-1, t, HIDDEN).bfloat16(),
            tuple((numbers(0, t, TOPK) + 1) / 2 for _ in range(LAYERS)),
            tuple(numbers(-1, LOCAL) for _ in range(LAYERS)),
        )
        for t in tokens
    ]
    ids = [
        tuple(
            torch.randint(-1, EXPERTS, (t, TOPK), generator=random, dtype=torch.int64)
            for _ in range(LAYERS)
        )
        for t in tokens
    ]
    return leaves, ids, [numbers(-1, t, HIDDEN) for t in tokens]


def reference(
    leaves: list[Leaves], ids: list[Ids], grads: list[torch.Tensor], rank: int
) -> list[torch.Tensor]:
    """A rank's result and gradients: one process that has everything, in float64."""
    doubled = [
        Leaves(
            one.x.double().requires_grad_(),
            tuple(w.double().requires_grad_() for w in one.weights),
            tuple(s.double().requires_grad_() for s in one.scales),
        )
        for one in leaves
    ]
    outs = []
    for one, selected in zip(doubled, ids, strict=True):
        values = one.x
        for number, chosen in enumerate(selected):
            every = torch.cat([other.scales[number] for other in doubled])
            factor = torch.where(chosen >= 0, every[chosen.clamp(min=0)], 0.0)
            values = (one.weights[number] * factor).sum(1, keepdim=True) * (values * 2) + 1
        outs.append(values)
    torch.stack([(o * g.double()).sum() for o, g in zip(outs, grads, strict=True)]).sum().backward()
    mine = doubled[rank]
    found = [outs[rank].detach()]
    for leaf in (mine.x, *mine.weights, *mine.scales):
        found.append(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad)
    return found


def layers(buffer: moewire.Buffer) -> dict[str, Layer]:
    number = ops.register(buffer)
    assert number == ops.register(buffer)

    def factors(ids: torch.Tensor, weights: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        return (weights * scales[ids.clamp(min=0)]).sum(1, keepdim=True)

    def flat(x: torch.Tensor, ids: Any, weights: Any, scales: Any) -> torch.Tensor:
        for i, w, s in zip(ids, weights, scales):  # noqa: B905
            rows, local, sent, handle = ops.dispatch(
                number, x * 2, i, w, MOST, EXPERTS, timeout_us=TIMEOUT_US
            )
            y = (rows.float() * factors(local, sent, s)).bfloat16()
            x = ops.combine(handle, y, x.shape[0]) + 1
        return x

    def compact(x: torch.Tensor, ids: Any, weights: Any, scales: Any) -> torch.Tensor:
        for i, w, s in zip(ids, weights, scales):  # noqa: B905
            handle = ops.make_routing(number, i, EXPERTS, timeout_us=TIMEOUT_US)
            rows, sent = ops.scatter(handle, x * 2, w, num_rows=RANKS * MOST, timeout_us=TIMEOUT_US)
            local = ops.recv_topk_idx(handle, rows.shape[0], TOPK)
            y = (rows.float() * factors(local, sent, s)).bfloat16()
            x = ops.gather(handle, y, x.shape[0], timeout_us=TIMEOUT_US) + 1
        return x

    def expanded(x: torch.Tensor, ids: Any, weights: Any, scales: Any) -> torch.Tensor:
        for i, w, s in zip(ids, weights, scales):  # noqa: B905
            handle = ops.make_routing(number, i, EXPERTS, timeout_us=TIMEOUT_US)
            rows, sent = ops.scatter(handle, x * 2, w, expanded=True, timeout_us=TIMEOUT_US)
            ends = ops.counts(handle, LOCAL).cumsum(0)
            at = torch.arange(rows.shape[0])
            of_row = s[torch.searchsorted(ends, at, right=True).clamp(max=LOCAL - 1)]
            y = (rows.float() * (sent * of_row)[:, None]).bfloat16()
            x = ops.gather(handle, y, x.shape[0], expanded=True, timeout_us=TIMEOUT_US) + 1
        return x

    return {"flat": flat, "compact": compact, "expanded": expanded}


def trained(layer: Layer, given: Leaves, ids: Ids, grad: torch.Tensor) -> list[torch.Tensor]:
    """The result of a layer, and the gradients of its leaves."""
    leaves = Leaves(
        given.x.clone().requires_grad_(),
        tuple(w.clone().requires_grad_() for w in given.weights),
        tuple(s.clone().requires_grad_() for s in given.scales),
    )
    out = layer(leaves.x, ids, leaves.weights, leaves.scales)
    (out.float() * grad).sum().backward()
    found = [out.detach()]
    for leaf in (leaves.x, *leaves.weights, *leaves.scales):
        assert leaf.grad is not None and leaf.grad.dtype is leaf.dtype
        found.append(leaf.grad)
    return found


def check(name: str, layer: Layer, rank: int, backend: str, whole: bool) -> None:
    """Eager and compiled against the reference; ``whole``: in one graph."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    torch._dynamo.config.capture_dynamic_output_shape_ops = whole
    compiled = torch.compile(layer, fullgraph=whole, backend=backend)
    for step, tokens in enumerate(TOKENS):
        leaves, ids, grads = drawn(tokens, step)
        want = reference(leaves, ids, grads, rank)
        mine = leaves[rank], ids[rank], grads[rank]
        for how, one in (("eager", layer), ("compiled", compiled)):
            got = trained(one, *mine)
            for number, (a, b) in enumerate(zip(got, want, strict=True)):
                assert torch.equal(a.double(), b), (name, how, tokens, number, a, b)
            assert not _tables.num_handles(), "a handle outlived its graph"
    reasons = [str(reason).split("\n")[0] for reason in counters["graph_break"]]
    if whole:
        assert not reasons, reasons
    else:
        assert reasons and all("ynamic" in reason for reason in reasons), reasons
    print(name, "in one graph" if whole else f"in pieces: {reasons[0]}", flush=True)


def run(rank: int, folder: str, backend: str, names: list[str]) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(os.path.join(folder, "store"), RANKS)
    size = autograd.get_flat_buffer_size_hint(MOST, HIDDEN, RANKS, TOPK)
    with moewire.Buffer.from_store(store, rank, RANKS, size) as buffer:
        made = layers(buffer)
        for name in names:
            check(name, made[name.removesuffix("/pieces")], rank, backend, name in made)
        store.set(f"end/{rank}", "")
        end = [f"end/{one}" for one in range(RANKS)]
        store.wait(end, timedelta(microseconds=TIMEOUT_US))
    print("torch", torch.__version__)
    print(f"compiled_ops: rank {rank} ok", flush=True)


def main(backend: str, names: list[str]) -> int:
    """Runs a process per rank, forked from one that has loaded the tracer, and not the library."""
    import torch._dynamo  # noqa: F401

    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        started = [
            context.Process(target=run, args=(rank, folder, backend, names), daemon=True)
            for rank in range(RANKS)
        ]
        for one in started:
            one.start()
        for one in started:
            one.join(timeout=500)
        codes = [one.exitcode for one in started]
        for one in started:
            one.kill()
    print("compiled_ops: ok" if codes == [0] * RANKS else f"compiled_ops: exit codes {codes}")
    return int(codes != [0] * RANKS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
