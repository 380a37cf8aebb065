#!/usr/bin/env python3
"""The layer of moe_layer.py with flat rows: each token goes once to every rank that it needs.
torchrun --nproc-per-node 2 examples/flat_layer.py
"""

import torch
import torch.distributed as dist

from moewire import Buffer

EXPERTS, TOPK, HIDDEN, MAX_TOKENS, TIMEOUT_US = 8, 4, 256, 64, 10_000_000


class FlatLayer:
    def __init__(self, group, router, weights):
        self.buffer = Buffer(group)
        self.router = router  # [E, H], the same on every rank
        self.weights = weights.chunk(dist.get_world_size(group))[dist.get_rank(group)]  # [L, H, H]

    def __call__(self, x):
        topk_weights, topk_idx = route(x, self.router)
        got = self.buffer.dispatch_flat(
            x, topk_idx, topk_weights, MAX_TOKENS, EXPERTS, timeout_us=TIMEOUT_US
        )
        y = self.buffer.get_next_combine_buffer(got.handle)  # [N, H]
        y.copy_(self.experts(got.recv_x, got.recv_topk_idx, got.recv_topk_weights))
        return self.buffer.combine_flat(y, got.handle, timeout_us=TIMEOUT_US, zero_copy=True)[0]

    def experts(self, rows, ids, weights):
        """Each row's experts on this rank (ids other than -1), weighted and added up."""
        total = torch.zeros(rows.shape)
        for expert, matrix in enumerate(self.weights):
            row, k = (ids == expert).nonzero(as_tuple=True)
            out = run_expert(rows[row], matrix).float() * weights[row, k, None]
            total.index_add_(0, row, out)
        return total


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
    layer = FlatLayer(dist.group.WORLD, router, weights)
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
