"""A rank on the emulated device, which torch takes for its current device.

torch's own operations do not know the emulated streams. So every launch is waited for, and torch
finds its input complete. Tensors that tests make without a device are of this one, so jobs that
were written for the CPU run unchanged. Moewire's own tensors are where it says, and do not mix.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from moewire._cuda import torch_cuda
from moewire._native import runtime

from .emulated import Emulated
from .jobs_cuda import Place, use, use_device
from .torch_device import pretending

_LAUNCHES = (
    "buffer_dispatch",
    "buffer_combine",
    "buffer_combine_buffer_on",
    "op_wait",
    "handle_release_on",
)


class Waiting:
    """A library, except that what it launches is over when it returns."""

    def __init__(self, library: Any, place: Emulated) -> None:
        self._library = library
        self._place = place
        self.launched: Counter[str] = Counter()  # by the name of the call

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._library, name)
        if name not in _LAUNCHES:
            return call

        def waited(*args: Any) -> Any:
            status = call(*args)
            if status >= 0:
                self.launched[name] += 1
                self._place.synchronize_all()
            return status

        return waited


@contextmanager
def current_device(
    driver: str, folder: str, *, waiting: bool = True, by_default: bool = True
) -> Iterator[Any]:
    """In this process, which has one rank: torch's own if no driver is named.

    ``waiting``: not for what is captured.
    ``by_default``: not for jobs that put their tensors on the device themselves.
    """
    if not driver:
        with _real(by_default) as real:
            yield real
        return
    before = torch_cuda.place, torch_cuda.current, runtime.library
    place = use(driver, folder)
    torch_cuda.current = lambda: 0
    if waiting:
        library = Waiting(runtime.library(), place)
        runtime.library = lambda: library  # type: ignore[assignment, return-value]
    try:
        with pretending(by_default=by_default):
            yield place
    finally:
        torch_cuda.place, torch_cuda.current, runtime.library = before


@contextmanager
def _real(by_default: bool) -> Iterator[Place]:
    """torch's operations know its streams, so that nothing is waited for."""
    before = torch_cuda.place
    try:
        with _numbers_of_the_processor(), torch.device("cuda", 0) if by_default else nullcontext():
            yield use_device()
    finally:
        torch_cuda.place = before


@contextmanager
def _numbers_of_the_processor() -> Iterator[None]:
    """Jobs draw from generators of the processor, whose numbers are the same on all devices."""
    with ExitStack() as stack:
        for name in ("rand", "randint", "randn", "randperm"):
            stack.enter_context(patch.object(torch, name, _drawn(getattr(torch, name))))
        yield


def _drawn(stock: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def draw(*args: Any, generator: Any = None, device: Any = None, **how: Any) -> torch.Tensor:
        if generator is None:
            return stock(*args, device=device, **how)
        made = stock(*args, generator=generator, device=generator.device, **how)
        return made.to(device or torch.get_default_device())

    return draw


def folder_of(path: str, rank: int) -> str:
    """One of this rank's own."""
    folder = Path(path) / f"device-{rank}"
    folder.mkdir(exist_ok=True)
    return str(folder)
