#!/usr/bin/env python3
"""Trains a small MoE model over several ranks, then in one process, and compares the losses.
torchrun --nproc-per-node 2 examples/train_moe.py [--high-throughput [--checkpoint]]

--high-throughput: over routings, which live from forward to backward; each rank adds up what its
experts give for a token. --checkpoint: experts run again in the backward, by the same routings.

Each rank has sequences of its own (a different number on each) and a share of the experts. The
experts' gradients come with the rows; all other gradients are summed over the ranks.
"""

import sys
import time
from itertools import pairwise

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from moewire import Buffer, autograd

VOCABULARY, HIDDEN, EXPERTS, TOPK, WIDTH, LAYERS = 24, 32, 8, 2, 32, 2
LENGTH, STEPS, RATE, MAX_TOKENS, TIMEOUT_US = 16, 100, 0.01, 128, 60_000_000
CALLS = "make_routing", "scatter", "gather", "dispatch", "combine"


class Model(torch.nn.Module):
    """Predicts a token from the two before it. Weights are float32, activations bf16."""

    def __init__(self, experts):
        super().__init__()

        def weights(*shape):  # of all experts, so that they are the same however they are spread
            values = torch.randn(LAYERS, EXPERTS, *shape) / shape[0] ** 0.5
            return torch.nn.Parameter(values[:, experts].clone())

        self.embedding = torch.nn.Embedding(2 * VOCABULARY, HIDDEN)
        self.router = torch.nn.Parameter(torch.randn(LAYERS, HIDDEN, EXPERTS) / HIDDEN**0.5)
        self.out = torch.nn.Linear(HIDDEN, VOCABULARY)
        self.up, self.down = weights(HIDDEN, WIDTH), weights(WIDTH, HIDDEN)

    def forward(self, batches, exchange):
        """The losses of ``batches``, one of each rank that this process plays."""
        pairs = [torch.stack([b[:, :-2], b[:, 1:-1] + VOCABULARY]).flatten(1) for b in batches]
        xs = [self.embedding(pair).sum(0).to(torch.bfloat16) for pair in pairs]
        for layer in range(LAYERS):
            scores = [(x.float() @ self.router[layer]).softmax(-1).topk(TOPK) for x in xs]
            outs = exchange(xs, scores, lambda rows, e, n=layer: self.expert(n, rows, e))
            xs = [x + out for x, out in zip(xs, outs, strict=True)]
        return [
            F.cross_entropy(self.out(x.float()), b[:, 2:].flatten(), reduction="sum")
            for x, b in zip(xs, batches, strict=True)
        ]

    def expert(self, layer, rows, number):
        """Expert ``number`` of those here, for its rows [n, H]."""
        middle = F.silu(rows @ self.up[layer, number].to(rows.dtype))
        return middle @ self.down[layer, number].to(rows.dtype)


def over_ranks(buffer):
    """The exchange of a layer: over all ranks."""

    def exchange(xs, scores, expert):
        (x,), ((weights, idx),) = xs, scores
        rows, routing = autograd.dispatch(
            buffer, x, idx, weights, None, MAX_TOKENS, EXPERTS, TIMEOUT_US
        )
        y = [expert(part, number) for number, part in enumerate(rows.split(routing.counts))]
        return [autograd.combine(torch.cat(y), routing)]

    return exchange


def over_routings(buffer, checkpoints):
    """The same over routings. A layer's routing serves its forward, its replay and its backward."""

    def exchange(xs, scores, expert):
        (x,), ((weights, idx),) = xs, scores
        routing = buffer.make_routing(idx, EXPERTS, timeout_us=TIMEOUT_US)
        form = {"expanded": True, "timeout_us": TIMEOUT_US}

        def layer(x, weights):
            rows, factors = autograd.scatter(buffer, routing, x, weights, **form)
            y = [expert(part, number) for number, part in enumerate(rows.split(routing.counts))]
            return autograd.gather(
                buffer, routing, weighted(torch.cat(y), factors), rows=rows, **form
            )

        again = (
            (lambda *given: checkpoint(layer, *given, use_reentrant=False))
            if checkpoints
            else layer
        )
        return [again(x, weights)]

    return exchange


def weighted(y, weights):
    """Rows [n, H] times weights [n], in bf16."""
    return (y.float() * weights.unsqueeze(1)).to(torch.bfloat16)


def alone_by_rank(num_ranks):
    """As ``alone``, with the sums that each of so many ranks makes of its own experts' outputs."""

    def exchange(xs, scores, expert):
        x, idx = torch.cat(xs).float(), torch.cat([idx for _, idx in scores])
        weights = torch.cat([weights for weights, _ in scores])
        total = torch.zeros_like(x)
        for here in torch.arange(EXPERTS).chunk(num_ranks):
            copy, part = x.to(torch.bfloat16), torch.zeros_like(x)
            for number in here.tolist():
                tokens, k = torch.where(idx == number)
                y = weighted(expert(copy[tokens], number), weights[tokens, k])
                part = part.index_add(0, tokens, y.float())
            total = total + part.to(torch.bfloat16).float()
        return total.to(torch.bfloat16).split([len(one) for one in xs])

    return exchange


def alone(xs, scores, expert):
    """The same within one process, for the tokens of all ranks: nothing of Moewire."""
    x, idx = torch.cat(xs).float(), torch.cat([idx for _, idx in scores])
    weights = torch.cat([weights for weights, _ in scores])
    y, places = [], []
    for number in range(EXPERTS):
        tokens, selections = torch.where(idx == number)
        y.append(expert(x[tokens].to(torch.bfloat16), number).float())
        places.append(tokens * TOPK + selections)
    y = torch.cat(y)[torch.cat(places).argsort()].unflatten(0, idx.shape)  # [T, K, H]
    total = torch.zeros_like(x)
    for k in range(TOPK):
        total = total + weights[:, k : k + 1] * y[:, k]
    return total.to(torch.bfloat16).split([len(one) for one in xs])


def batch(rank, step):
    """Sequences in which two tokens say what comes next, with some noise: int64 [n, LENGTH]."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    sequences = torch.randint(0, VOCABULARY, (4 + 3 * (rank % 2), LENGTH), generator=generator)
    noise = torch.rand(sequences.shape, generator=generator) < 0.1
    for t in range(2, LENGTH):
        following = (sequences[:, t - 1] * 5 + sequences[:, t - 2] ** 2) % VOCABULARY
        sequences[:, t] = torch.where(noise[:, t], sequences[:, t], following)
    return sequences


def sum_over_ranks(value):
    """In place, from the last rank to the first, as autograd adds within one process."""
    parts = [torch.empty_like(value) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, value)
    value.copy_(sum(reversed(parts[:-1]), start=parts[-1]))


class Timed(Buffer):
    """A buffer that adds up the seconds of its calls, waits for other ranks included."""

    seconds = 0.0

    def __getattribute__(self, name):
        inner = super().__getattribute__(name)
        if name not in CALLS:
            return inner

        def call(*args, **options):
            begin = time.perf_counter()
            result = inner(*args, **options)
            self.seconds += time.perf_counter() - begin
            return result

        return call


def train(experts, ranks_here, num_ranks, exchange, reduce, ended=lambda: None):
    """The loss per token at each step."""
    torch.manual_seed(0)
    model, losses = Model(experts), []
    shared = [p for name, p in model.named_parameters() if name not in ("up", "down")]
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    for step in range(STEPS):
        tokens = sum(len(batch(rank, step)) for rank in range(num_ranks)) * (LENGTH - 2)
        optimizer.zero_grad()
        parts = model([batch(rank, step) for rank in ranks_here], exchange)
        (sum(parts) / tokens).backward()
        total = sum(part.detach().double() for part in parts)
        for value in (total, *(p.grad for p in shared)):
            reduce(value)
        optimizer.step()
        losses.append(total.item() / tokens)
        ended()
    return losses


def print_share(times):
    """Of the calls in a step, of this rank; ``times`` are (now, in calls so far) between steps."""
    steps = [(b - a, d - c) for (a, c), (b, d) in pairwise(times)]
    seconds, in_calls = min(steps)
    share = in_calls / seconds
    print(f"the fastest step took {seconds * 1e3:.2f} ms, {share:.0%} in calls of the buffer")


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    routed, checkpoints = "--high-throughput" in sys.argv, "--checkpoint" in sys.argv
    size = autograd.get_ep_buffer_size_hint(MAX_TOKENS, HIDDEN, ranks, EXPERTS, TOPK)
    share = EXPERTS // ranks
    with Timed(dist.group.WORLD, size) as buffer:
        mine = slice(rank * share, (rank + 1) * share)
        exchange = over_routings(buffer, checkpoints) if routed else over_ranks(buffer)
        times = [(time.perf_counter(), 0.0)]  # at the end of each step: now, and in calls so far
        together = train(
            mine, [rank], ranks, exchange, sum_over_ranks,
            lambda: times.append((time.perf_counter(), buffer.seconds)),
        )  # fmt: skip
        counters = buffer.counters()
    assert routed or counters["num_dispatches"] == counters["num_combines"] == 2 * LAYERS * STEPS
    assert counters["num_rows_sent"] > LAYERS * STEPS
    if rank == 0:
        print_share(times)
        exchange = alone_by_rank(ranks) if routed else alone
        one = train(slice(EXPERTS), range(ranks), ranks, exchange, lambda _: None)
        for step in [*range(0, STEPS, STEPS // 5), STEPS - 1]:
            print(f"step {step}: loss {together[step]:.6f}, one process {one[step]:.6f}")
        difference = max(abs(a - b) for a, b in zip(together, one, strict=True))
        print(f"{ranks} ranks, largest difference of {STEPS} steps: {difference:g}", flush=True)
        assert together[-1] < together[0] - 1, "nothing was learned"
        # The same numbers are rounded at the same places and added in the same order.
        assert difference == 0, "not one process's training, to the bit"
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
