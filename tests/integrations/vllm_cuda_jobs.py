"""The packed exchange of the vLLM plug-in with its Buffers on an emulated CUDA device.

Tensors are on the CPU: the emulated device's memory is the process's.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist
import vllm_contract_packed as packed
import vllm_overlap_jobs as overlap

import moewire.integrations.vllm as plugin
from harness.on_cuda import Waiting, current_device
from moewire import _runtime
from moewire.integrations import _buffers
from moewire.integrations.vllm import _place


def overlapped(driver: str) -> dict[str, Any]:
    """Two micro-batches through three layers, called by vLLM's own kernel and contexts."""
    with _on_cuda(driver):
        overlap._counts = _launched
        return overlap.in_packed_form(False)


def contract(driver: str) -> dict[str, Any]:
    """What vLLM's experts expect of the exchange."""
    with _on_cuda(driver):
        packed.get_ep_group = lambda: SimpleNamespace(cpu_group=dist.group.WORLD)
        return packed.check(dist.get_rank(), dist.get_world_size())


@contextmanager
def _on_cuda(driver: str) -> Iterator[None]:
    _place.of = lambda group: _buffers.InGroup(group, "cuda")
    with tempfile.TemporaryDirectory() as folder, current_device(driver, folder) as place:
        yield
        place.synchronize_all()
        plugin.close()


def _launched() -> dict[str, int]:
    library: Any = _runtime.library()
    assert isinstance(library, Waiting) and plugin.buffers()
    assert all(buffer.runtime.gpu is not None for buffer in plugin.buffers())
    names = {"num_dispatches": "buffer_dispatch", "num_combines": "buffer_combine"}
    return {name: library.launched[call] for name, call in names.items()}
