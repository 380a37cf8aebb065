#!/usr/bin/env python3
"""A MoE layer by hand: each rank has tokens of its own and a share of the experts.
torchrun --nproc-per-node 2 examples/moe_layer.py    # or examples/python/spawn.py, mpirun.py
"""

import torch
import torch.distributed as dist

from moewire import Buffer

EXPERTS, TOPK, HIDDEN, MAX_TOKENS, TIMEOUT_US = 8, 2, 256, 64, 10_000_000


class MoELayer:
    def __init__(self, group, router, weights):
        self.buffer = Buffer(group)
        self.router = router  # [E, H], the same on every rank
        self.weights = weights.chunk(dist.get_world_size(group))[dist.get_rank(group)]  # [L, H, H]

    def __call__(self, x):
        topk_weights, topk_idx = route(x, self.router)
        rows, counts, handle, _, _ = self.buffer.dispatch(
            x, topk_idx, None, MAX_TOKENS, EXPERTS, TIMEOUT_US, use_fp8=False
        )
        y = self.buffer.get_next_combine_buffer(handle)
        for expert, n in enumerate(counts.tolist()):
            y[expert, :n] = run_expert(rows[expert, :n], self.weights[expert])
        return self.buffer.combine(
            y, topk_idx, topk_weights, None, TIMEOUT_US, handle, zero_copy=True
        )[0]


def route(x, router):
    return (x.float() @ router.T).softmax(-1).topk(TOPK)  # weights [T, K], expert ids [T, K]


def run_expert(rows, weight):
    return torch.relu(rows.float() @ weight).to(torch.bfloat16)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    router, weights = torch.randn(EXPERTS, HIDDEN), torch.randn(EXPERTS, HIDDEN, HIDDEN) / 16
    x = torch.randn(10 + 7 * rank, HIDDEN).to(torch.bfloat16)  # other numbers on every rank
    layer = MoELayer(dist.group.WORLD, router, weights)
    topk_weights, topk_idx = route(x, router)  # the same with all experts in this process
    every = torch.stack([run_expert(x, weight) for weight in weights], dim=1).float()
    local = (every[torch.arange(len(x))[:, None], topk_idx] * topk_weights[..., None]).sum(1)
    error = (layer(x).float() - local).abs().max()
    sent = layer.buffer.counters()["num_rows_sent_to"]
    print(f"rank {rank}: {len(x)} tokens, rows sent to {sent}, error {error:.4f}", flush=True)
    assert error < 0.02 * local.abs().max()
    layer.buffer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
