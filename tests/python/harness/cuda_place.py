"""The device that tests of CUDA in this process put behind its buffers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from moewire._config.device import CODE_VARIABLE
from moewire._cuda import torch_cuda
from moewire._cuda.report import DRIVER_VARIABLE

from . import cuda_device, emulator, jobs_cuda
from .jobs_cuda import Place
from .torch_device import pretending


@contextmanager
def behind_buffers(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[Place]:
    """The real one where it is asked for, else the emulated one."""
    for name in (DRIVER_VARIABLE, CODE_VARIABLE):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(torch_cuda, "place", torch_cuda.place)
    one: Place
    if cuda_device.wanted():
        one = jobs_cuda.use_device()
        yield one
    else:
        one = jobs_cuda.use(str(emulator.driver()), str(folder))
        with pretending():
            yield one
    one.forget()
