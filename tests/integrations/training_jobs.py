"""What the ranks do to train. Each job answers with plain values; the tests judge them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import integration_models as models
import torch
import torch.distributed as dist
import transformers
from integration_jobs import HOOKED, NAMES, ROUND

import moewire.integrations.transformers as moe


def everything(folder: str) -> dict[str, Any]:
    """One launch for all tests of one number of ranks."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    moe.configure(max_tokens=ROUND, timeout_us=60_000_000)
    root = Path(folder)
    if dist.get_rank() == 0:
        for name in NAMES:
            models.make(name, root)
    dist.barrier()
    answers = {name: gradients(root / name, name) for name in NAMES}
    moe.close()
    return answers


def gradients(folder: Path, name: str) -> dict[str, Any]:
    """One backward, against one process that has all ranks' texts."""
    ranks = dist.get_world_size()
    spread, peer, alone = (
        _load(folder, name, ranks if one else 1, one) for one in ("moewire", "all_to_all", "")
    )
    for rank in range(ranks):
        (_loss(alone, rank) / ranks).backward()  # FSDP takes the mean over the ranks
    want = dict(_gradients(alone))
    _loss(peer, dist.get_rank()).backward()
    theirs = dict(_gradients(peer))
    ours = _backward(spread)
    before = _operations(spread)
    again = _backward(spread)
    operations = [b - a for a, b in zip(before, _operations(spread), strict=True)]
    spread.gradient_checkpointing_enable()
    before = _operations(spread)
    checkpointed = _backward(spread)
    more = [b - a for a, b in zip(before, _operations(spread), strict=True)]
    return {
        "names": sorted(ours) == sorted(want),
        "distance": _worst(ours, want),
        "peer_distance": _worst(theirs, want),
        "again": _equal(ours, again),
        "operations": operations,
        "checkpointed": _equal(ours, checkpointed),
        "checkpointed_operations": more,
    }


def _load(folder: Path, name: str, ranks: int, implementation: str) -> Any:
    model = models.load(folder, ranks, implementation).train()
    if name in HOOKED:
        moe.fp32_router_scores(model)
    return model


def _loss(model: Any, rank: int) -> torch.Tensor:
    """Other lengths on every rank: all but the first need several rounds."""
    ids = models.prompt(rank, 6 + 11 * rank)
    loss: torch.Tensor = model(ids, labels=ids).loss
    return loss


def _backward(model: Any) -> dict[str, torch.Tensor]:
    model.zero_grad()
    _loss(model, dist.get_rank()).backward()
    return dict(_gradients(model))


def _gradients(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            whole = getattr(parameter.grad, "full_tensor", parameter.grad.clone)
            yield name, whole()


def _operations(model: Any) -> list[int]:
    """What the core has counted: dispatches and combines."""
    counters = [buffer.counters() for buffer in moe.buffers(model)]
    return [sum(c[f"num_{what}"] for c in counters) for what in ("dispatches", "combines")]


def _worst(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> tuple[float, str]:
    """The largest relative distance of a parameter's gradient, and which."""
    return max(
        (float((got[name].float() - one.float()).norm() / one.float().norm()), name)
        for name, one in want.items()
        if one.any()
    )


def _equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)
