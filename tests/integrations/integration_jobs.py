"""What the ranks do. Each job answers with plain values; the tests check them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import integration_models as models
import torch
import torch.distributed as dist
import transformers

import moewire.integrations.transformers as moe
from moewire import InvalidArgument

ROUND = 16  # tokens of one rank in one round: all but the shortest batches need several
HOOKED = ("qwen3_moe", "olmoe", "gpt_oss")
NAMES = ("mixtral", "deepseek_v3", *HOOKED)


def with_models(folder: str) -> Path:
    """Quiet transformers, the plug-in's settings, and every model in ``folder``, on all ranks."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    moe.configure(max_tokens=ROUND, timeout_us=60_000_000)
    root = Path(folder)
    if dist.get_rank() == 0:
        for name in NAMES:
            models.make(name, root)
    dist.barrier()
    return root


def everything(folder: str) -> dict[str, Any]:
    """One launch for all tests of one number of ranks."""
    root = with_models(folder)
    answers: dict[str, Any] = {name: architecture(root / name, name) for name in NAMES}
    answers["behaviour"] = behaviour(root / "mixtral")
    moe.close()
    return answers


def architecture(folder: Path, name: str) -> dict[str, Any]:
    """Logits against one process, for batches of several lengths."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    distributed, alone = models.load(folder, ranks, "moewire"), models.load(folder, 1, "moewire")
    answer: dict[str, Any] = {}
    if name in HOOKED:
        with torch.inference_mode():
            ids = models.prompt(rank, 24)
            answer["without_hook"] = distance(distributed(ids).logits, alone(ids).logits)
        answer["hooks"] = [len(moe.fp32_router_scores(model)) for model in (distributed, alone)]
    lengths = {"1": 1, "5": 5, "40": 40, "uneven": 3 + 9 * rank}
    with torch.inference_mode():
        for label, length in lengths.items():
            ids = models.prompt(rank, length)
            answer[label] = torch.equal(distributed(ids).logits, alone(ids).logits)
    moe.reset_stats(distributed)
    before = operations(distributed)
    with torch.inference_mode():
        distributed(models.prompt(rank, 3 + 9 * rank))
    answer["operations"] = [b - a for a, b in zip(before, operations(distributed), strict=True)]
    answer["stats"] = [vars(one) for one in moe.stats(distributed).values()]
    answer["buffers"] = len(moe.buffers(distributed))
    return answer


def operations(model: Any) -> list[int]:
    """What the core has counted: dispatches and combines."""
    counters = [buffer.counters() for buffer in moe.buffers(model)]
    return [sum(c[f"num_{what}"] for c in counters) for what in ("dispatches", "combines")]


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.float() - other.float()).norm() / other.float().norm())


def behaviour(folder: Path) -> dict[str, Any]:
    """Everything that one architecture is enough for."""
    ranks = dist.get_world_size()
    distributed, alone = models.load(folder, ranks, "moewire"), models.load(folder, 1, "moewire")
    with torch.inference_mode():
        answer = {
            "generate": _generate(distributed, alone),
            "join_refused": _raised(InvalidArgument, lambda: moe.join(distributed)),
            "join": _join(distributed, alone),
            "corrupt": _corrupt(distributed, alone),
            "grouped": _grouped(folder, ranks),
            "peer": _peer(folder, ranks, distributed, alone),
        }
    return {**answer, **_refusals(distributed, alone)}


def _generate(distributed: Any, alone: Any) -> bool:
    """transformers' own loop; lengths of prompts and texts differ between ranks."""
    rank = dist.get_rank()
    ids, new = models.prompt(rank, 4 + 5 * rank), 6 + 4 * rank
    options = {"max_new_tokens": new, "do_sample": False, "eos_token_id": None}
    return bool(torch.equal(distributed.generate(ids, **options), alone.generate(ids, **options)))


def _join(distributed: Any, alone: Any) -> dict[str, Any]:
    """The last rank has nothing to do; the others more than a round takes."""
    moe.gather_dense_weights(distributed)
    moe.reset_stats(distributed)
    rank, idle = dist.get_rank(), dist.get_rank() == dist.get_world_size() - 1
    ids = models.prompt(rank, 20)
    if idle:
        moe.join(distributed)
    equal = idle or torch.equal(distributed(ids).logits, alone(ids).logits)
    (stats, *_) = moe.stats(distributed).values()
    return {"idle": idle, "equal": equal, "tokens": stats.tokens, "rounds": stats.rounds}


def _corrupt(distributed: Any, alone: Any) -> dict[str, bool]:
    """Whether a layer's results, and the same with one bit flipped, are one process's."""
    layers = [model.model.layers[0].mlp.experts for model in (distributed, alone)]
    generator = torch.Generator().manual_seed(dist.get_rank())
    x = torch.randn((9, models.HIDDEN), generator=generator).to(torch.bfloat16)
    scores = torch.rand((9, models.EXPERTS), generator=generator)
    weights, idx = scores.topk(models.TOPK)

    def equal() -> bool:
        ours, theirs = (layer(x, idx, weights) for layer in layers)
        return bool(torch.equal(ours, theirs))

    as_it_is = equal()
    moe.close()
    os.environ["MOEWIRE_TEST_CORRUPT"] = "1"
    corrupted = equal()
    del os.environ["MOEWIRE_TEST_CORRUPT"]
    moe.close()
    dist.barrier()
    return {"as_it_is": as_it_is, "corrupted": corrupted}


def _grouped(folder: Path, ranks: int) -> float:
    """grouped_mm: its last bits may depend on how many rows share an expert."""
    distributed = models.load(folder, ranks, "moewire", "grouped_mm")
    alone = models.load(folder, 1, "moewire", "grouped_mm")
    ids = models.prompt(dist.get_rank(), 24)
    return distance(distributed(ids).logits, alone(ids).logits)


def _peer(folder: Path, ranks: int, distributed: Any, alone: Any) -> dict[str, float]:
    """The built-in exchange: as close to one process as it gets, and how long a forward takes."""
    peer = models.load(folder, ranks, "all_to_all")
    moe.gather_dense_weights(peer)
    ids = models.prompt(dist.get_rank(), 4)
    return {
        "distance": distance(peer(ids).logits, alone(ids).logits),
        "all_to_all_ms": _milliseconds(lambda: peer(ids)),
        "moewire_ms": _milliseconds(lambda: distributed(ids)),
    }


def _milliseconds(forward: Callable[[], object], repeats: int = 8) -> float:
    from time import perf_counter

    times = []
    for _ in range(repeats):
        dist.barrier()
        begin = perf_counter()
        forward()
        times.append(perf_counter() - begin)
    return 1e3 * sorted(times)[repeats // 2]


def _refusals(distributed: Any, alone: Any) -> dict[str, Any]:
    """Each refusal comes on every rank alike, before anything is sent."""
    experts = distributed.model.layers[0].mlp.experts
    x = torch.zeros((2, models.HIDDEN), dtype=torch.bfloat16)
    idx, weights = torch.zeros((2, models.TOPK), dtype=torch.int64), torch.zeros((2, models.TOPK))
    implementation = experts._moewire_ep
    return {
        "dtype": _raised(InvalidArgument, lambda: implementation(x.float(), idx, weights)),
        "experts": _raised(
            InvalidArgument, lambda: moe.shard_experts(torch.nn.Linear(2, 2), None, 0, 2)
        ),
        "num_ranks": _raised(InvalidArgument, lambda: moe.shard_experts(alone, None, 0, 3)),
        "again": _raised(InvalidArgument, lambda: moe.shard_experts(distributed, None, 0, 2)),
        "untouched": _untouched_by_a_refusal(),
        "max_tokens": _raised(InvalidArgument, lambda: moe.configure(max_tokens=0)),
    }


class _Layer(torch.nn.Module):
    """As far as spreading looks at one."""

    def __init__(self, num_experts: int) -> None:
        super().__init__()
        self.experts = torch.nn.Module()
        self.experts.num_experts = num_experts
        self.experts.weight = torch.nn.Parameter(torch.ones(num_experts, 2))


def _untouched_by_a_refusal() -> bool:
    """The second layer is refused: what of the first?"""
    model = torch.nn.Sequential(_Layer(4), _Layer(3))
    refused = _raised(InvalidArgument, lambda: moe.shard_experts(model, None, 0, 2))
    first = model[0].experts
    whole = first.num_experts == 4 and first.weight.shape == (4, 2)
    return "divisor" in refused and whole and "forward" not in vars(first)


def _raised(kind: type[Exception], call: Callable[[], object]) -> str:
    try:
        call()
    except kind as error:
        return str(error)
    return ""
