#!/usr/bin/env python3
"""A MoE layer on GPUs: called, then replayed out of a CUDA graph.
torchrun --nproc-per-node 2 examples/cuda_layer.py    # a GPU per rank, or one that they share
"""

import os
import sys

import torch
import torch.distributed as dist

from moewire import Buffer

EXPERTS, TOPK, HIDDEN, TOKENS, TIMEOUT_US, REPLAYS = 8, 2, 256, 64, 10_000_000, 3


class MoELayer:
    def __init__(self, group, weights):
        ranks = dist.get_world_size(group)
        num_bytes = Buffer.get_ep_buffer_size_hint(TOKENS, HIDDEN, ranks, EXPERTS)
        self.buffer = Buffer(group, num_bytes, device="cuda")
        self.weights = weights.chunk(ranks)[dist.get_rank(group)]  # [L, H, H]
        self.active = torch.ones(ranks, dtype=torch.int32, device="cuda")  # a lost rank's gets 0

    def __call__(self, x, topk_idx, topk_weights):
        rows, _, handle, _, _ = self.buffer.dispatch(
            x, topk_idx, self.active, TOKENS, EXPERTS, TIMEOUT_US, use_fp8=False
        )
        y = experts(rows, self.weights)
        return self.buffer.combine(y, topk_idx, topk_weights, self.active, TIMEOUT_US, handle)[0]


def experts(rows, weights):
    """Runs on all places, also empty ones: only the device knows how many rows there are."""
    return torch.relu(torch.bmm(rows, weights))


def batch(router):
    """Tokens and their experts, put on the device."""
    x = torch.randn(TOKENS, HIDDEN)
    topk_weights, topk_idx = (x @ router.T).softmax(-1).topk(TOPK)
    return x.to(torch.bfloat16).cuda(), topk_idx.cuda(), topk_weights.cuda()


def error(out, weights, x, topk_idx, topk_weights):
    """How far that is from all experts in this process, in parts of the largest value."""
    every = experts(x.expand(EXPERTS, *x.shape), weights).transpose(0, 1).float()  # [T, E, H]
    tokens = torch.arange(TOKENS, device="cuda")[:, None]
    local = (every[tokens, topk_idx] * topk_weights[..., None]).sum(1)
    return ((out.float() - local).abs().max() / local.abs().max()).item()


def missing():
    """Why this cannot run here; None where it can."""
    if not torch.backends.cuda.is_built():
        return f"torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return "torch finds no CUDA device; `moewire doctor` has the driver's own words"
    return None


def main():
    if why := missing():
        sys.exit(f"cuda_layer.py needs a GPU: {why}")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("gloo")  # Moewire uses its store alone
    rank = dist.get_rank()
    torch.manual_seed(0)
    router, weights = torch.randn(EXPERTS, HIDDEN), torch.randn(EXPERTS, HIDDEN, HIDDEN) / 16
    weights = weights.to(torch.bfloat16).cuda()
    torch.manual_seed(1 + rank)  # other tokens on every rank
    layer, inputs = MoELayer(dist.group.WORLD, weights), batch(router)
    errors = [error(layer(*inputs), weights, *inputs)]  # also, nothing is made first in a capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        out = layer(*inputs)
    for _ in range(REPLAYS):
        for tensor, new in zip(inputs, batch(router), strict=True):
            tensor.copy_(new)  # a graph reads and writes where it was recorded
        graph.replay()
        errors.append(error(out, weights, *inputs))
    sent = layer.buffer.counters()["num_rows_sent_to"]
    print(f"rank {rank}: rows sent to {sent}, errors {max(errors):.4f}", flush=True)
    assert max(errors) < 0.02
    dist.barrier()  # no graph is replayed any more
    del graph
    layer.buffer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
