#!/usr/bin/env python3
"""Three ranks; one is killed; the others go on; a fresh process takes its place.
python examples/rejoin.py
"""

import os
import signal

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from moewire import Buffer

RANKS, EXPERTS, TOPK, HIDDEN, TOKENS, TIMEOUT_US = 3, 6, 2, 256, 8, 10_000_000
KILLED, DIES_AT, UPDATE_AT, STEPS = 2, 2, 4, 6


def step(buffer, number, active):
    """Dispatch, experts that double their rows, combine; checks the sums of the live experts."""
    torch.manual_seed(100 * number + buffer.rank)
    x = torch.randn(TOKENS, HIDDEN).to(torch.bfloat16)
    topk = torch.rand(TOKENS, EXPERTS).topk(TOPK).indices
    weights = torch.full((TOKENS, TOPK), 1 / TOPK)
    rows, counts, handle, _, _ = buffer.dispatch(
        x, topk, active, TOKENS, EXPERTS, TIMEOUT_US, use_fp8=False
    )
    y = buffer.get_next_combine_buffer(handle)
    for expert, n in enumerate(counts.tolist()):
        y[expert, :n] = rows[expert, :n] * 2  # row by row: a lost rank may leave holes
    out, _, _ = buffer.combine(y, topk, weights, active, TIMEOUT_US, handle, zero_copy=True)
    share = active[topk // (EXPERTS // RANKS)].float().mean(1, keepdim=True)  # of live experts
    assert torch.equal(out.float(), 2 * share * x.float()), "wrong sums"  # nothing is rounded


def run(rank, port, first):
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    if first > 0:
        store.set("replacement", "is there")
    buffer = Buffer.from_store(store, rank, RANKS)  # the fresh process waits here for the update
    active = torch.ones(RANKS, dtype=torch.int32)
    for number in range(first, STEPS):
        if first == 0 and number == UPDATE_AT:
            store.wait(["replacement"])  # or any other sign for the ranks that it is time
            buffer.update_ep_member()
            active.fill_(1)  # moewire only clears entries
        if first == 0 and rank == KILLED and number == DIES_AT:
            os.kill(os.getpid(), signal.SIGKILL)
        step(buffer, number, active)
        print(
            f"rank {rank}, step {number}: epoch {buffer.epoch}, active_ranks {active.tolist()}",
            flush=True,
        )
    buffer.close()


def start(rank, port, first):
    process = mp.get_context("spawn").Process(target=run, args=(rank, port, first))
    process.start()
    return process


def main():
    # The store is the launcher's: it outlives every rank.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = [start(rank, store.port, 0) for rank in range(RANKS)]
    ranks[KILLED].join()
    assert ranks[KILLED].exitcode == -signal.SIGKILL, "a rank failed"
    print(f"rank {KILLED} was killed; a fresh process takes its place", flush=True)
    ranks[KILLED] = start(KILLED, store.port, UPDATE_AT)
    for process in ranks:
        process.join()
    assert all(process.exitcode == 0 for process in ranks), "a rank failed"
    print("all ranks are back", flush=True)


if __name__ == "__main__":
    main()
