"""transformers' models with their tensors on an emulated CUDA device, beside those of the CPU."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import integration_models as models
import torch
import torch.distributed as dist
import transformers
from integration_jobs import HOOKED

import moewire.integrations.transformers as moe
from harness.on_cuda import Waiting, current_device
from moewire import InvalidArgument
from moewire._native import runtime
from moewire.integrations._devices import SWITCH

LENGTH, MOST, FEW = 9, 64, 5


def everything(root: str, driver: str, name: str) -> dict[str, Any]:
    """Logits of one process, gradients of the CPU's ranks, a rank without tokens, refusals."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    moe.configure(max_tokens=MOST, timeout_us=60_000_000)
    if dist.get_rank() == 0:
        models.make(name, Path(root))
    dist.barrier()
    folder = Path(root) / name
    ids = models.prompt(dist.get_rank(), LENGTH + 4 * dist.get_rank())
    with torch.inference_mode():
        alone = _loaded(folder, name)(ids).logits
    want = _gradients(_distributed(folder, name, "cpu"), ids)
    moe.close()
    with _on_cuda(driver):
        distributed = _on_device(_distributed(folder, name, "cuda"))
        there = ids.cuda()
        with torch.inference_mode():
            answer = {"logits": torch.equal(distributed(there).logits.cpu(), alone)}
        answer["launched"] = _launched()
        answer["on_cuda"] = [not one.runtime.drives for one in moe.buffers(distributed)]
        answer["rounds"] = _rounds(distributed, there, alone)
        answer["wrong"] = _differing(_gradients(distributed, there), want)
        answer["join"] = _join(distributed, there, alone)
        answer["untested"] = _refused(distributed)
        moe.close()
    return answer


def _loaded(folder: Path, name: str) -> Any:
    model = models.load(folder, 1, "")
    if name in HOOKED:
        moe.fp32_router_scores(model)
    return model


def _distributed(folder: Path, name: str, where: str) -> Any:
    """Its experts over the ranks, which meet in a store of their own."""
    model, size = _loaded(folder, name), dist.get_world_size()
    store = dist.FileStore(str(folder / f"ranks-{where}"), size)
    moe.shard_experts(model, store, dist.get_rank(), size)
    return model


def _on_device(model: Any) -> Any:
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # they become another class
    try:
        return model.to("cuda")
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)


@contextmanager
def _on_cuda(driver: str) -> Iterator[None]:
    os.environ[SWITCH] = "1"
    with tempfile.TemporaryDirectory() as folder, current_device(driver, folder) as place:
        yield
        place.synchronize_all()


def _gradients(model: Any, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model(ids, labels=ids).loss.backward()
    parameters = model.named_parameters()
    return {name: one.grad.cpu() for name, one in parameters if one.grad is not None}


def _differing(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> list[str]:
    """Names of gradients that are not the CPU's to the bit."""
    assert any("experts" in name for name in want)
    return [name for name in want.keys() | got.keys() if not _equal(got.get(name), want.get(name))]


def _equal(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return False
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def _rounds(model: Any, ids: torch.Tensor, alone: torch.Tensor) -> dict[str, Any]:
    """A forward in more than one round, of which one rank needs fewer than the other."""
    before = _launched()
    moe.configure(max_tokens=FEW)
    with torch.inference_mode():
        same = torch.equal(model(ids).logits.cpu(), alone)
    moe.configure(max_tokens=MOST)
    rounds = (_launched() - before) // models.LAYERS
    return {"same": same, "own": -(-ids.numel() // FEW), "rounds": rounds}


def _join(model: Any, ids: torch.Tensor, alone: torch.Tensor) -> bool:
    """The last rank has nothing to do; its experts serve the others."""
    with torch.inference_mode():
        if dist.get_rank() == dist.get_world_size() - 1:
            moe.join(model)
            return True
        return torch.equal(model(ids).logits.cpu(), alone)


def _refused(model: Any) -> str:
    """Refused with a reason, before anything is sent, so that the other ranks need not be there."""
    experts = next(one for name, one in model.named_modules() if name.endswith(".experts"))
    x = torch.ones((1, models.HIDDEN), dtype=torch.bfloat16)
    del os.environ[SWITCH]
    try:
        with torch.inference_mode():
            experts(x, torch.zeros((1, 1), dtype=torch.int64), torch.ones((1, 1)))
    except InvalidArgument as error:
        return str(error)
    finally:
        os.environ[SWITCH] = "1"
    return "nothing"


def _launched() -> int:
    library: Any = runtime.library()
    assert isinstance(library, Waiting)
    return library.launched["buffer_dispatch"]
