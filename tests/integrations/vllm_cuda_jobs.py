"""The exchanges of the vLLM plug-in with their Buffers on an emulated CUDA device.

vLLM's own tensors are made where those of its test would be: on the device.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist
import vllm_contract_flat as flat
import vllm_contract_packed as packed
import vllm_fakes as fakes
import vllm_overlap_jobs as overlap
import vllm_parts_jobs as parts
from vllm_contract import EXPERTS

import moewire.integrations.vllm as plugin
from harness.on_cuda import Waiting, current_device
from moewire._native import runtime
from moewire.integrations.vllm import _platform


def overlapped(driver: str, form: str) -> dict[str, Any]:
    """Two micro-batches, through three layers called by vLLM's own kernel where it is packed."""
    with _on_cuda(driver):
        overlap._counts = _launched
        return overlap.in_flat_form(False) if form == "flat" else overlap.in_packed_form(False)


def contract(driver: str, form: str) -> dict[str, Any]:
    """What vLLM's experts expect of the exchange."""
    group = dist.group.WORLD
    with _on_cuda(driver):
        if form == "flat":
            manager = fakes.manager(group, EXPERTS, max_tokens=40)
            answer = flat.check(manager, dist.get_rank(), dist.get_world_size())
            answer["launched"] = _launched()
            manager.destroy()
            return answer | {"open": len(plugin.buffers())}
        packed.get_ep_group = lambda: SimpleNamespace(cpu_group=group)
        return packed.check(dist.get_rank(), dist.get_world_size())


def late(driver: str) -> list[str]:
    """As on the CPU: what the first rank raises when the other one does not dispatch."""
    with _on_cuda(driver):
        return parts.late("cuda")


@contextmanager
def _on_cuda(driver: str) -> Iterator[None]:
    _platform.tensor_device = lambda: "cuda"
    with tempfile.TemporaryDirectory() as folder, current_device(driver, folder) as place:
        yield
        place.synchronize_all()
        plugin.close()


def _launched() -> dict[str, int]:
    library: Any = runtime.library()
    assert isinstance(library, Waiting) and plugin.buffers()
    assert all(not buffer.runtime.drives for buffer in plugin.buffers())
    names = {"num_dispatches": "buffer_dispatch", "num_combines": "buffer_combine"}
    return {name: library.launched[call] for name, call in names.items()}
