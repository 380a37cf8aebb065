#!/usr/bin/env python3
"""A layer of experts through Megatron-core's own token dispatcher over Moewire, as in one process.
torchrun --nproc-per-node 2 examples/megatron_moe.py [deepep|hybridep]

Needs pip install --no-deps megatron-core==0.16.1. Megatron takes Moewire for DeepEP. It compiles
small functions first; TORCHDYNAMO_DISABLE=1 saves that minute.
"""

import sys

import torch
import torch.distributed as dist

import moewire.compat.deep_ep

moewire.compat.deep_ep.install()  # before Megatron looks for deep_ep
from megatron.core.process_groups_config import ProcessGroupCollection  # noqa: E402
from megatron.core.transformer.moe.token_dispatcher import MoEFlexTokenDispatcher  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402


def over_ranks(dispatcher, x, probs, experts):
    """x [tokens, 1, H] through the experts of all ranks; ``experts`` are those of this one."""
    tokens, weights = dispatcher.dispatch_preprocess(x, probs > 0, probs)
    rows, weights = dispatcher.token_dispatch(tokens, weights)
    rows, counts, weights = dispatcher.dispatch_postprocess(rows, weights)
    parts = zip(rows.split(counts.tolist()), experts, strict=True)
    y = torch.cat([part.float() @ matrix for part, matrix in parts]) * weights.unsqueeze(1)
    back = dispatcher.token_combine(dispatcher.combine_preprocess(y.bfloat16()))
    return dispatcher.combine_postprocess(back)


def dispatcher_of(backend, own):
    """Megatron's dispatcher of a rank with the experts ``own``."""
    config = TransformerConfig(
        num_layers=1, num_attention_heads=1, hidden_size=64, num_moe_experts=8, moe_router_topk=2,
        moe_router_dtype="fp32", moe_token_dispatcher_type="flex",
        moe_flex_dispatcher_backend=backend, expert_model_parallel_size=8 // len(own),
    )  # fmt: skip
    world = dist.group.WORLD
    groups = ProcessGroupCollection(ep=world, tp_ep=world, expt_tp=None)
    return MoEFlexTokenDispatcher(len(own), list(own), config, groups)


def main(backend="deepep"):
    dist.init_process_group("gloo")
    rank, local = dist.get_rank(), 8 // dist.get_world_size()
    torch.manual_seed(0)
    experts = (torch.randn(8, 64, 64) / 8).requires_grad_()
    torch.manual_seed(1 + rank)
    x = torch.randn(48 + rank, 1, 64).bfloat16().requires_grad_()  # not as many on each rank
    scores = torch.randn(len(x), 8).softmax(1).requires_grad_()
    probs = scores * (scores >= scores.topk(2).values[:, -1:])

    dispatcher = dispatcher_of(backend, range(local * rank, local * (rank + 1)))
    mine = over_ranks(dispatcher, x, probs, experts.split(local)[rank])
    alone = torch.einsum("tbh,ehf,te->tbf", x.float(), experts, probs)
    found = []
    for out in mine, alone:
        grads = torch.autograd.grad(out.square().sum(), (x, scores, experts), retain_graph=True)
        dist.all_reduce(grads[2])  # an expert's gradient comes from the tokens of all ranks
        found.append((out, *grads))
    for name, one, want in zip(("out", "x", "scores", "experts"), *found, strict=True):
        error = ((one - want).abs().max() / want.abs().max()).item()
        print(f"rank {rank}: {name} differs by {error:.4f} of the greatest value", flush=True)
        assert error < 0.01, "not one process's"  # activations are rounded to bf16
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
