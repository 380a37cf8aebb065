"""What the ranks do to train. Each job answers with plain values; the tests check them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import integration_models as models
import torch
import torch.distributed as dist
import transformers
from integration_jobs import HOOKED, NAMES, distance, operations, with_models
from transformers.distributed import DistributedConfig

import moewire.integrations.transformers as moe


def everything(folder: str) -> dict[str, Any]:
    """One launch for all tests of one number of ranks."""
    root = with_models(folder)
    answers: dict[str, Any] = {name: gradients(root / name, name) for name in NAMES}
    answers["reentrant"] = reentrant(root / "mixtral")
    answers["tensor_parallel"] = tensor_parallel(root / "mixtral")
    answers["saved"] = saved(root)
    answers["corrupted"] = corrupted(root / "mixtral")
    moe.close()
    return answers


def gradients(folder: Path, name: str) -> dict[str, Any]:
    """One backward, against one process that has all ranks' texts."""
    ranks = dist.get_world_size()
    distributed, peer, alone = (
        _load(folder, name, ranks if one else 1, one) for one in ("moewire", "all_to_all", "")
    )
    for rank in range(ranks):
        (_loss(alone, rank) / ranks).backward()  # FSDP takes the mean over the ranks
    want = dict(_gradients(alone))
    _loss(peer, dist.get_rank()).backward()
    theirs = dict(_gradients(peer))
    ours = _backward(distributed)
    before = operations(distributed)
    again = _backward(distributed)
    plain = [b - a for a, b in zip(before, operations(distributed), strict=True)]
    distributed.gradient_checkpointing_enable()
    before = operations(distributed)
    checkpointed = _backward(distributed)
    more = [b - a for a, b in zip(before, operations(distributed), strict=True)]
    return {
        "names": sorted(ours) == sorted(want),
        "distance": _worst(ours, want),
        "peer_distance": _worst(theirs, want),
        "again": _equal(ours, again),
        "operations": plain,
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
            yield name, _whole(parameter.grad).clone()


def _worst(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> tuple[float, str]:
    """The largest relative distance of a parameter's gradient, and which."""
    return max(
        (float((got[name].float() - one.float()).norm() / one.float().norm()), name)
        for name, one in want.items()
        if one.any()
    )


def _equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def reentrant(folder: Path) -> bool:
    """The other way of checkpointing, which runs a backward inside the backward."""
    distributed = _load(folder, "mixtral", dist.get_world_size(), "moewire")
    plain = _backward(distributed)
    distributed.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    distributed.enable_input_require_grads()
    return _equal(plain, _backward(distributed))


def corrupted(folder: Path) -> dict[str, bool]:
    """A bit that is flipped in every combine must show in the gradients."""
    distributed = _load(folder, "mixtral", dist.get_world_size(), "moewire")
    plain = _backward(distributed)
    moe.close()
    os.environ["MOEWIRE_TEST_CORRUPT"] = "1"
    flipped = _backward(distributed)
    del os.environ["MOEWIRE_TEST_CORRUPT"]
    moe.close()
    dist.barrier()
    return {"as_it_is": _equal(plain, _backward(distributed)), "corrupted": _equal(plain, flipped)}


def tensor_parallel(folder: Path) -> dict[str, Any]:
    """Pairs of ranks share a batch and the dense layers; the experts lie on all ranks."""
    ranks, group = dist.get_world_size(), dist.get_rank() // 2
    distributed, peer = (_load_pairs(folder, name) for name in ("moewire", "all_to_all"))
    alone = models.load(folder, 1, "").train()
    ids = models.prompt(group, 7 + 4 * group)
    with torch.no_grad():
        logits, theirs, want = (model(ids).logits for model in (distributed, peer, alone))
    layer = _one_layer(distributed, alone, group)
    before = operations(distributed)
    grown = [dict(_gradients(_after_backward(model, ids))) for model in (distributed, peer)]
    for pair in range(ranks // 2):
        texts = models.prompt(pair, 7 + 4 * pair)
        (alone(texts, labels=texts).loss * 2 / ranks).backward()
    wanted = dict(_gradients(alone))
    return {
        "layer": layer,
        "as_peer": torch.equal(logits, theirs),
        "distance": distance(logits, want),
        "peer_distance": distance(theirs, want),
        "gradients": _worst(grown[0], wanted),
        "peer_gradients": _worst(grown[1], wanted),
        "operations": [b - a for a, b in zip(before, operations(distributed), strict=True)],
    }


def _load_pairs(folder: Path, implementation: str) -> Any:
    ranks = dist.get_world_size()
    pairs = DistributedConfig(
        tp_size=2, fsdp_size=ranks // 2, ep_size=ranks, ep_implementation=implementation
    )
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.bfloat16,
        experts_implementation="batched_mm",
        distributed_config=pairs,
    ).train()


def _after_backward(model: Any, ids: torch.Tensor) -> Any:
    model(ids, labels=ids).loss.backward()
    return model


def _one_layer(distributed: Any, alone: Any, group: int) -> bool:
    """Without the dense layers: tensor parallelism rounds their sums elsewhere. To the bit."""
    generator = torch.Generator().manual_seed(group)
    x = torch.randn((9, models.HIDDEN), generator=generator).to(torch.bfloat16)
    weights, idx = torch.rand((9, models.EXPERTS), generator=generator).topk(models.TOPK)
    with torch.no_grad():
        one, other = (m.model.layers[0].mlp.experts(x, idx, weights) for m in (distributed, alone))
    return bool(torch.equal(one, other))


def saved(root: Path) -> dict[str, bool]:
    """A model that was trained for a step, saved, and loaded by one process and by all."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    distributed = _load(root / "mixtral", "mixtral", ranks, "moewire")
    _backward(distributed)
    torch.optim.SGD(distributed.parameters(), lr=0.1).step()
    distributed.save_pretrained(root / "saved")
    dist.barrier()
    alone, again = (models.load(root / "saved", n, "moewire") for n in (1, ranks))
    old = dict(models.load(root / "mixtral", 1, "").named_parameters())
    kept = {name: _whole(p) for name, p in distributed.named_parameters()}
    loaded = dict(alone.named_parameters())
    ids = models.prompt(rank, 5)
    distributed.eval()
    with torch.no_grad():
        logits = [model(ids).logits for model in (distributed, alone, again)]
    return {
        "kept": sorted(kept) == sorted(loaded) and _equal(kept, loaded),
        "trained": not any(
            torch.equal(one, kept[name]) for name, one in old.items() if "experts" in name
        ),
        "logits": torch.equal(logits[0], logits[1]) and torch.equal(logits[0], logits[2]),
    }


def _whole(parameter: Any) -> torch.Tensor:
    whole = parameter.detach()
    return whole.full_tensor() if hasattr(whole, "full_tensor") else whole
