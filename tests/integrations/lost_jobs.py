"""A text is written while a rank is killed, and later replaced by a fresh process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import integration_models as models
import torch
import torch.distributed as dist
import transformers
from integration_jobs import ROUND

import moewire.integrations.transformers as moe

DEATH, RETURN, END = 4, 8, 12  # tokens written by then


class Course(transformers.StoppingCriteria):
    """Calls back after each token."""

    def __init__(self, events: dict[int, Callable[[], None]]) -> None:
        self.events = events
        self.step = 0

    def __call__(self, ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        self.step += 1
        self.events.get(self.step, lambda: None)()
        return torch.zeros(ids.shape[0], dtype=torch.bool)


def survive(folder: str, parts: tuple[str, ...]) -> Any:
    """The last process is the fresh one, which takes the place of the one before it.

    ``parts``: the model that each layer is taken from; the first has the rest as well.
    """
    process, ranks = dist.get_rank(), dist.get_world_size() - 1
    fresh, rank = process == ranks, min(process, ranks - 1)
    transformers.logging.set_verbosity_error()
    moe.configure(max_tokens=ROUND, timeout_us=60_000_000)
    root = Path(folder)
    if process == 0:
        for name in set(parts):
            models.make(name, root)
    dist.barrier()  # the last use of the process group
    model = _load(root, parts)
    store = dist.FileStore(str(root / "ranks"), ranks)
    moe.shard_experts(model, store, rank, ranks)
    with torch.inference_mode():
        if fresh:
            return _serve(model, root, ranks)
        return _write(model, root, rank, ranks, parts)


def _load(root: Path, parts: tuple[str, ...]) -> Any:
    model = models.load(root / parts[0], 1, "")
    for number, name in enumerate(parts):
        if name != parts[0]:
            other = models.load(root / name, 1, "")
            model.model.layers[number] = other.model.layers[number]
    return model


def _serve(model: Any, root: Path, ranks: int) -> dict[str, Any]:
    """The fresh process: no text of its own, but the experts of the one that died."""
    _wait_for(root, "death", list(range(ranks)))
    for _ in range(END - RETURN):
        moe.join(model)
    answer = _answer(model)
    _meet(root, "end", ranks - 1, list(range(ranks)))
    moe.close()
    return {"buffers": answer}


def _write(model: Any, root: Path, rank: int, ranks: int, parts: tuple[str, ...]) -> dict[str, Any]:
    def die() -> None:
        _meet(root, "death", rank, list(range(ranks)))
        if rank == ranks - 1:
            os.kill(os.getpid(), signal.SIGKILL)

    def update() -> None:
        for buffer in moe.buffers(model):
            buffer.update_ep_member()

    found = _generate(model, rank, {DEATH: die, RETURN: update})
    answer: dict[str, Any] = {"buffers": _answer(model)}
    _meet(root, "end", rank, list(range(ranks)))
    moe.close()
    alone = _load(root, parts)
    answer["equal"] = _same(found, _alone(alone, rank, ranks, silent=True))
    answer["equal_without_loss"] = _same(found, _alone(alone, rank, ranks, silent=False))
    return answer


def _answer(model: Any) -> list[dict[str, Any]]:
    """Of each Buffer."""
    return [
        {
            "members": buffer.members(),
            "epoch": buffer.epoch,
            "operations": [buffer.counters()[f"num_{name}"] for name in ("dispatches", "combines")],
        }
        for buffer in moe.buffers(model)
    ]


def _generate(model: Any, rank: int, events: dict[int, Callable[[], None]]) -> Any:
    return model.generate(
        models.prompt(rank, 5 + rank),
        max_new_tokens=END,
        do_sample=False,
        eos_token_id=None,
        output_logits=True,
        return_dict_in_generate=True,
        stopping_criteria=transformers.StoppingCriteriaList([Course(events)]),
    )


def _alone(model: Any, rank: int, ranks: int, silent: bool) -> Any:
    """One process; ``silent``: the lost experts give zeros while they are lost."""
    every = [layer.mlp.experts.down_proj.data for layer in model.model.layers]
    lost = [weights[(ranks - 1) * len(weights) // ranks :] for weights in every]
    kept = [weights.clone() for weights in lost]

    def silence() -> None:
        for weights in lost:
            weights.zero_()

    def restore() -> None:
        for weights, old in zip(lost, kept, strict=True):
            weights.copy_(old)

    return _generate(model, rank, {DEATH: silence, RETURN: restore} if silent else {})


def _same(one: Any, other: Any) -> bool:
    pairs = zip(one.logits, other.logits, strict=True)
    return torch.equal(one.sequences, other.sequences) and all(torch.equal(*pair) for pair in pairs)


def _meet(root: Path, name: str, rank: int, ranks: list[int]) -> None:
    (root / f"{name}-{rank}").touch()
    _wait_for(root, name, ranks)


def _wait_for(root: Path, name: str, ranks: list[int]) -> None:
    deadline = time.monotonic() + 60
    while not all((root / f"{name}-{rank}").exists() for rank in ranks):
        assert time.monotonic() < deadline, f"waited for the others at {name!r}"
        time.sleep(0.002)
