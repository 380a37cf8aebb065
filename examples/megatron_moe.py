#!/usr/bin/env python3
"""A layer with Megatron-core's own token dispatcher over Moewire, and the same in one process.
torchrun --nproc-per-node 2 examples/megatron_moe.py [deepep|hybridep]

Needs pip install --no-deps megatron-core==0.16.1. Megatron takes Moewire for DeepEP.
"""

import os
import sys
from types import SimpleNamespace

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # compiling Megatron's small functions gives the same

import torch
import torch.distributed as dist

import moewire.compat.deep_ep

moewire.compat.deep_ep.install()  # before Megatron looks for deep_ep
from megatron.core.transformer.moe.token_dispatcher import MoEFlexTokenDispatcher  # noqa: E402

EXPERTS, TOPK, HIDDEN, TOKENS = 8, 2, 64, 48
CONFIG = {
    "moe_router_topk": TOPK,
    "num_moe_experts": EXPERTS,
    "moe_router_dtype": "fp32",
    "moe_expert_capacity_factor": None,
    "moe_pad_expert_input_to_capacity": False,
    "moe_permute_fusion": False,
    "moe_router_padding_for_quantization": False,
    "moe_deepep_num_sms": 20,
    "moe_hybridep_num_sms": 16,
    "fp8": None,
    "fp4": None,
}


def over_ranks(dispatcher, x, probs, experts):
    """x [tokens, 1, H] through this rank's experts and those of all others."""
    tokens, weights = dispatcher.dispatch_preprocess(x, probs > 0, probs)
    rows, weights = dispatcher.token_dispatch(tokens, weights)
    rows, counts, weights = dispatcher.dispatch_postprocess(rows, weights)
    parts = zip(rows.split(counts.tolist()), experts, strict=True)
    y = torch.cat([part.float() @ matrix for part, matrix in parts]) * weights.unsqueeze(1)
    back = dispatcher.token_combine(dispatcher.combine_preprocess(y.to(torch.bfloat16)))
    return dispatcher.combine_postprocess(back)


def alone(x, probs, experts):
    """The same with all experts here: nothing of Megatron or Moewire."""
    outs = torch.einsum("tbh,ehf->tbef", x.float(), experts)
    return (outs * probs.view(len(x), 1, EXPERTS, 1)).sum(2)


def main(backend="deepep"):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.group.WORLD
    local = EXPERTS // dist.get_world_size()
    own = slice(rank * local, (rank + 1) * local)
    torch.manual_seed(0)
    matrices = torch.randn(EXPERTS, HIDDEN, HIDDEN) / HIDDEN**0.5
    torch.manual_seed(1 + rank)
    x = torch.randn(TOKENS + rank, 1, HIDDEN).to(torch.bfloat16)  # not the same on each rank
    scores = torch.randn(len(x), EXPERTS).softmax(1)
    probs = scores * (scores >= scores.topk(TOPK).values[:, -1:])

    config = SimpleNamespace(moe_flex_dispatcher_backend=backend, **CONFIG)
    groups = SimpleNamespace(ep=world, expt_tp=None, tp_ep=world)
    dispatcher = MoEFlexTokenDispatcher(local, list(range(EXPERTS))[own], config, groups)
    found = []
    for layer, experts in (lambda *a: over_ranks(dispatcher, *a), matrices[own]), (alone, matrices):
        leaves = [one.clone().requires_grad_() for one in (x, probs, experts)]
        out = layer(*leaves)
        out.square().sum().backward()
        grads = [leaves[0].grad.float(), leaves[1].grad * (probs > 0), leaves[2].grad]
        found.append([out.float().detach(), *grads])
    dist.all_reduce(found[1][3])  # an expert's gradient comes from the tokens of all ranks
    found[1][3] = found[1][3][own]
    names = "out", "gradient of x", "gradient of probabilities", "gradient of experts"
    for name, mine, want in zip(names, *found, strict=True):
        error = ((mine - want).abs().max() / want.abs().max()).item()
        print(f"rank {rank}: {name} differs by {error:.4f} of the greatest value", flush=True)
        assert error < 0.01, "not one process's"  # activations are rounded to bf16
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
