#!/usr/bin/env python3
"""Ranks that are Ray actors; one is killed; the others go on; a new actor takes its place.

    pip install ray
    python examples/python/ray_ranks.py

The ranks meet through Ray itself, without a store. The placement group keeps them on one node.
"""

import asyncio
import os
import tempfile
from collections import defaultdict

# Read when Ray is imported. The second one, despite its name, keeps Ray on loopback: it is for one
# machine. In a cluster leave it out, and the arguments of ray.init() below, too.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"

import ray
import torch
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from moewire import Buffer

RANKS, EXPERTS, TOPK, HIDDEN, TOKENS, TIMEOUT_US = 3, 6, 2, 256, 8, 60_000_000
# An actor is a new process that imports torch: a minute on a busy machine, and the first call of
# each rank waits for all of them. A process that dies is noticed at once, despite these timeouts.
KILLED, TIMEOUT_S = 1, 600


@ray.remote(num_cpus=0)
class Board:
    """Where the ranks of a rendezvous leave their bytes, and wait for those of all ranks."""

    def __init__(self):
        self.left = defaultdict(dict)
        self.changed = asyncio.Condition()

    async def exchange(self, turn, rank, own):
        async with self.changed:
            self.left[turn][rank] = own
            self.changed.notify_all()
            await self.changed.wait_for(lambda: len(self.left[turn]) == RANKS)
        return [self.left[turn][other] for other in range(RANKS)]


@ray.remote(num_cpus=1)
class Rank:
    def __init__(self, rank, board, rendezvous):
        torch.set_num_threads(1)
        self.rank, self.board, self.rendezvous, self.turn = rank, board, rendezvous, 0
        self.active = torch.ones(RANKS, dtype=torch.int32)
        self.buffer = Buffer.from_exchange(self.exchange, rank, RANKS)  # waits for the others

    def exchange(self, own):
        self.turn += 1
        everybody = self.board.exchange.remote((self.rendezvous, self.turn), self.rank, own)
        return ray.get(everybody, timeout=TIMEOUT_S)

    def update(self, rendezvous):
        self.rendezvous, self.turn = rendezvous, 0
        self.buffer.update_ep_member()
        self.active.fill_(1)  # Moewire only clears entries

    def step(self, number):
        """Dispatch, experts that double their rows, combine; checks the sums of live experts."""
        torch.manual_seed(100 * number + self.rank)
        x = torch.randn(TOKENS, HIDDEN).to(torch.bfloat16)
        topk = torch.rand(TOKENS, EXPERTS).topk(TOPK).indices
        weights = torch.full((TOKENS, TOPK), 1 / TOPK)
        rows, counts, handle, _, _ = self.buffer.dispatch(
            x, topk, self.active, TOKENS, EXPERTS, TIMEOUT_US, use_fp8=False
        )
        y = self.buffer.get_next_combine_buffer(handle)
        for expert, n in enumerate(counts.tolist()):
            y[expert, :n] = rows[expert, :n] * 2  # row by row: a lost rank may leave holes
        out, _, _ = self.buffer.combine(
            y, topk, weights, self.active, TIMEOUT_US, handle, zero_copy=True
        )
        share = self.active[topk // (EXPERTS // RANKS)].float().mean(1, keepdim=True)
        assert torch.equal(out.float(), 2 * share * x.float()), "wrong sums"  # halves are exact
        return self.buffer.epoch, self.active.tolist()

    def close(self):
        self.buffer.close()


def run(ranks, numbers):
    for number in numbers:
        live = {rank: actor for rank, actor in enumerate(ranks) if actor is not None}
        results = ray.get([a.step.remote(number) for a in live.values()], timeout=TIMEOUT_S)
        for rank, (epoch, active) in zip(live, results, strict=True):
            print(f"rank {rank}, step {number}: epoch {epoch}, active_ranks {active}", flush=True)


def main():
    node = placement_group([{"CPU": 1}] * RANKS, strategy="STRICT_PACK")
    assert node.wait(TIMEOUT_S), f"no node has {RANKS} free processors"
    board = Board.remote()

    def start(rank, rendezvous):
        where = PlacementGroupSchedulingStrategy(node, placement_group_bundle_index=rank)
        return Rank.options(scheduling_strategy=where).remote(rank, board, rendezvous)

    ranks = [start(rank, 1) for rank in range(RANKS)]
    run(ranks, [0, 1])
    ray.kill(ranks[KILLED])
    ranks[KILLED] = None
    run(ranks, [2, 3])
    updates = [actor.update.remote(2) for actor in ranks if actor is not None]
    ranks[KILLED] = start(KILLED, 2)  # its constructor meets the others' updates
    ray.get(updates, timeout=TIMEOUT_S)
    run(ranks, [4, 5])
    ray.get([actor.close.remote() for actor in ranks], timeout=TIMEOUT_S)
    print("all ranks are back", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        ray.init(
            "local",
            num_cpus=RANKS,
            include_dashboard=False,
            object_store_memory=80 << 20,
            _node_ip_address="127.0.0.1",
            _temp_dir=folder,
            _system_config={"worker_register_timeout_seconds": TIMEOUT_S},
        )
        try:
            main()
        finally:
            ray.shutdown()
