"""Time of one MoE layer's exchange inside transformers: Moewire beside the built-in all_to_all.

    torchrun --standalone --nproc-per-node 2 examples/python/exchange_time.py

The objects measured are the ones that transformers makes for the layers of a loaded model, with
experts that return their rows. Both run in turns in one run; a sample is a mean over some layers.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, MixtralConfig, logging
from transformers.distributed import DistributedConfig
from transformers.distributed.expert_parallel import AllToAllEP, EPImplementationInterface

import moewire.integrations.transformers as moe

# Hidden size, experts, experts per token, tokens per rank.
SHAPES = [
    (1024, 16, 4, 1),
    (1024, 16, 4, 64),
    (1024, 16, 4, 256),
    (2048, 64, 8, 1),
    (2048, 64, 8, 128),
]
NUM_LAYERS = 2
CALLS = 8  # per sample


class Kept(AllToAllEP):  # type: ignore[misc]
    """The built-in implementation, remembering its objects."""

    made: list[Kept]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        Kept.made.append(self)


def layers(folder: str, implementation: str) -> list[Any]:
    """What transformers makes for the MoE layers of the model in ``folder``."""
    Kept.made = []
    ranks = dist.get_world_size()
    model = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.bfloat16,
        experts_implementation="grouped_mm",
        distributed_config=DistributedConfig(
            fsdp_size=ranks, ep_size=ranks, ep_implementation=implementation
        ),
    )
    ours = [m._moewire_ep for m in model.modules() if hasattr(m, "_moewire_ep")]
    for layer in ours or Kept.made:
        layer.experts_forward = lambda rows, _ids, _weights: rows
    return ours or Kept.made


def sample(group: list[Any], inputs: tuple[torch.Tensor, ...]) -> float:
    """Seconds per layer."""
    dist.barrier()
    begin = perf_counter()
    for i in range(CALLS):
        group[i % len(group)](*inputs)
    return (perf_counter() - begin) / CALLS


def slowest(seconds: float) -> float:
    """The largest of all ranks' numbers."""
    value = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return float(value)


def compare(shape: tuple[int, int, int, int], root: str, iterations: int) -> None:
    """Prints one line of the table."""
    hidden, experts, topk, tokens = shape
    folder = f"{root}/{hidden}-{experts}"
    if dist.get_rank() == 0:
        config = MixtralConfig(
            vocab_size=264,
            hidden_size=hidden,
            intermediate_size=64,
            num_local_experts=experts,
            num_experts_per_tok=topk,
            num_hidden_layers=NUM_LAYERS,
            num_attention_heads=8,
            num_key_value_heads=2,
        )
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    dist.barrier()
    groups = {name: layers(folder, name) for name in ("moewire", "kept")}
    generator = torch.Generator().manual_seed(dist.get_rank())
    weights, choice = torch.rand(tokens, experts, generator=generator).topk(topk)
    inputs = (torch.randn(tokens, hidden, generator=generator).bfloat16(), choice, weights)
    times: dict[str, list[float]] = {name: [] for name in groups}
    with torch.inference_mode():
        for i in range(iterations + 5):
            for name, group in groups.items():
                seconds = sample(group, inputs)
                if i >= 5:
                    times[name].append(seconds)
    ours, theirs = (slowest(statistics.median(times[name])) * 1e3 for name in groups)
    if dist.get_rank() == 0:
        sizes = f"{dist.get_world_size():3} {hidden:6} {experts:4} {topk:3} {tokens:5}"
        print(f"{sizes} {ours:10.3f} {theirs:12.3f} {theirs / ours:8.1f}", flush=True)
    moe.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--shapes", type=int, default=len(SHAPES), help="only the first so many")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    dist.init_process_group("gloo")
    EPImplementationInterface.register("kept", Kept)
    if dist.get_rank() == 0:
        print("  R      H    E   K     T  moewire ms  all_to_all ms  times faster", flush=True)
    with tempfile.TemporaryDirectory() as own:
        root = [own]  # rank 0's, on every rank
        dist.broadcast_object_list(root)
        for shape in SHAPES[: options.shapes]:
            compare(shape, root[0], options.iterations)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
