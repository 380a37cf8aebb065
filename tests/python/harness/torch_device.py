"""torch on a machine without a device, where ``device="cuda"`` gives tensors ``AsDevice``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from .as_device import AsDevice, device_and_dtype

_TESTS = str(Path(__file__).resolve().parents[2])
_MAKERS = (
    *("arange", "as_tensor", "empty", "empty_strided", "eye", "full", "linspace", "ones"),
    *("rand", "randint", "randn", "randperm", "tensor", "zeros"),
)


# by_default of every ``pretending`` that is open, the innermost last.
_open: list[list[bool]] = []


@contextmanager
def pretending(*, by_default: bool = False) -> Iterator[None]:
    """For this process, with all its threads, and within another one: the innermost counts.

    ``by_default``: a test that names no device gets tensors of the device, as a test that was
    written for the CPU does. Moewire, torch and engines make tensors on the device that they name.
    """
    mine = [by_default]
    _open.append(mine)
    try:
        with _replaced() if len(_open) == 1 else nullcontext():
            yield
    finally:
        _open[:] = [other for other in _open if other is not mine]


@contextmanager
def _replaced() -> Iterator[None]:
    stock = {name: getattr(torch, name) for name in _MAKERS}
    for name, make in stock.items():
        setattr(torch, name, _maker(make))
    moves = {name: getattr(torch.Tensor, name) for name in ("to", "cuda")}
    torch.Tensor.to = _to(moves["to"])  # type: ignore[method-assign]
    torch.Tensor.cuda = lambda self, *_, **__: _there(self)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for name in moves:
            delattr(torch.Tensor, name)  # torch has them one class further up
        for name, make in stock.items():
            setattr(torch, name, make)


def _maker(stock: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def make(*args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        if device is None and _open and _open[-1][0]:
            there = sys._getframe(1).f_code.co_filename.startswith(_TESTS)
        else:
            there = device is not None and torch.device(device).type == "cuda"
        if device is not None and not there:
            kwargs["device"] = device
        made = stock(*args, **kwargs)
        return _there(made) if there else made

    return make


def _to(stock: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        device, dtype = device_and_dtype(args, kwargs)
        if device is None or device.type != "cuda":
            return stock(self, *args, **kwargs)
        return _there(self if dtype is None else stock(self, dtype))

    return to


def _there(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, AsDevice):
        return tensor
    return AsDevice.of(tensor.detach().clone().requires_grad_(tensor.requires_grad))
