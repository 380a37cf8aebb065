#!/usr/bin/env python3
"""What the containers of group.yaml run: one rank, or with --store the ranks' rendezvous point.

RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT have the meaning of torch.distributed. A rank that
fails ends; when it is restarted, it comes back into the group. SIGTERM ends it in good order.
"""

import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

from moewire import Buffer

EXPERTS_PER_RANK, TOPK, HIDDEN, TOKENS, TIMEOUT_US = 2, 2, 256, 8, 10_000_000
PAUSE_S = 0.2  # between two steps, where a model would compute


def step(buffer, number, active):
    """Dispatch, experts that double their rows, combine; checks the sums of the live experts."""
    ranks = len(active)
    torch.manual_seed(100 * number + buffer.rank)
    x = torch.randn(TOKENS, HIDDEN).to(torch.bfloat16)
    topk = torch.rand(TOKENS, ranks * EXPERTS_PER_RANK).topk(TOPK).indices
    weights = torch.full((TOKENS, TOPK), 1 / TOPK)
    rows, counts, handle, _, _ = buffer.dispatch(
        x, topk, active, TOKENS, ranks * EXPERTS_PER_RANK, TIMEOUT_US, use_fp8=False
    )
    y = buffer.get_next_combine_buffer(handle)
    for expert, n in enumerate(counts.tolist()):
        y[expert, :n] = rows[expert, :n] * 2  # row by row: a lost rank may leave holes
    out, _, _ = buffer.combine(y, topk, weights, active, TIMEOUT_US, handle, zero_copy=True)
    share = active[topk // EXPERTS_PER_RANK].float().mean(1, keepdim=True)  # of live experts
    assert torch.equal(out.float(), 2 * share * x.float()), "wrong sums"  # halves are exact


class Plan:
    """When the group takes lost ranks back, agreed on in the store; one plan per epoch.

    A rank that sees that a lost rank is back proposes a step. The step is two ahead, because no
    rank gets further than into the dispatch that the proposer still has to join.
    """

    def __init__(self, store):
        self.store = store

    def propose(self, buffer, number):
        members = set(buffer.members())
        lost = set(range(buffer.group_size)) - members
        back = {rank for rank in lost if self.store.check([f"back/{rank}"])}
        if back:
            plan = json.dumps([number + 2, sorted(members | back)])
            self.store.compare_set(f"plan/{buffer.epoch}", "", plan)

    def agreed(self, epoch):
        """The step before which this epoch ends, and the next one's members; None: no plan yet."""
        key = f"plan/{epoch}"
        return json.loads(self.store.get(key)) if self.store.check([key]) else None


def run_rank(rank, ranks, store):
    plan = Plan(store)
    store.set(f"back/{rank}", "")  # tells the group, if there is one, that this rank waits
    with Buffer.from_store(store, rank, ranks) as buffer:
        store.delete_key(f"back/{rank}")
        active = torch.ones(ranks, dtype=torch.int32)
        number, _ = plan.agreed(buffer.epoch - 1) or (0, None)
        while True:
            plan.propose(buffer, number)
            agreed = plan.agreed(buffer.epoch)
            if agreed and number >= agreed[0]:
                number, members = agreed
                for one in members:  # a rank that dies first sets its key again
                    store.delete_key(f"back/{one}")
                buffer.update_ep_member(members=members, timeout_us=TIMEOUT_US)
                active.fill_(1)  # Moewire only clears entries
            step(buffer, number, active)
            said = f"epoch {buffer.epoch}, active_ranks {active.tolist()}"
            print(f"rank {rank}, step {number}: {said}", flush=True)
            number += 1
            time.sleep(PAUSE_S)


def main():
    # A container's first process is not ended by SIGTERM unless it asks for that.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    torch.set_num_threads(1)
    port = int(os.environ["MASTER_PORT"])
    if "--store" in sys.argv:
        store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
        print(f"store: port {store.port}", flush=True)
        while True:
            signal.pause()
    store = dist.TCPStore(os.environ["MASTER_ADDR"], port)
    run_rank(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), store)


if __name__ == "__main__":
    main()
