"""The jobs of ``sglang_jobs`` where torch's current device is an emulated one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import sglang_client as client
import sglang_elastic as elastic
import sglang_jobs as jobs

from harness.on_cuda import Waiting, current_device
from moewire._native import runtime

# More than there are slots.
NUM_LAYERS = 4


def layers(driver: str, backend: str, dtype: str, hook: bool) -> dict[str, Any]:
    """As the CPU's, with fewer layers."""
    return _over_device(driver, jobs.layers, backend, dtype, hook, NUM_LAYERS)


def schedules(driver: str, backend: str) -> dict[str, Any]:
    """Some of the CPU's: the leads over three layers."""
    jobs._orders_of_one_layer = jobs._drawn_orders = _none
    return _over_device(driver, jobs.schedules, backend)


def killed_and_back(rank: int, size: int, folder: Path, driver: str, deaths: int) -> dict[str, Any]:
    """As the CPU's. A process takes the device when its life begins: a rank forks before."""
    for name in ("_survivor", "_one_life"):
        setattr(elastic, name, partial(_over_device, driver, getattr(elastic, name)))
    return elastic.killed_and_back(rank, size, folder, deaths)


def _none() -> Iterator[jobs.Order]:
    yield from ()


def _over_device(driver: str, job: Any, *arguments: Any) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, current_device(driver, folder) as place:
        client.num_operations = _launched
        answer: dict[str, Any] = job(*arguments)
        place.synchronize_all()
        return answer


def _launched(backend: str) -> list[int]:
    """Operations on a buffer on CUDA, which has no statistics; fails on another library's."""
    import moewire

    buffer = client.shared_buffer(backend)
    core = buffer._buffer if backend == "deepep" else buffer
    assert isinstance(core, moewire.Buffer) and not core.runtime.drives, type(buffer)
    library: Any = runtime.library()
    assert isinstance(library, Waiting)
    return [library.launched[name] for name in ("buffer_dispatch", "buffer_combine")]
