"""What Moewire asks of torch about one CUDA device: tensors, addresses, streams, events.

All that operations use of torch's CUDA is here. Tests put another ``Place`` behind ``place``,
with the CPU as its device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from .._base.place import Place
from ..errors import NoDeviceError

# Lower numbers go first. torch clamps a number that is out of its range. torch negates it, and
# this is the lowest number with a negative that fits a C int.
_BEYOND_ALL = -(2**31 - 1)


def _greatest_priority(device: torch.device) -> int:
    """The priority of streams that go before all others, because other ranks wait for their work.

    -1 is above that of common streams, but devices have higher levels.
    """
    asked = getattr(torch.cuda.Stream, "priority_range", None)
    if asked is None:
        return _BEYOND_ALL
    with torch.cuda.device(device):
        _least, greatest = asked()
    return int(greatest)


# numpy's names. Types that only torch has use those of the same width.
_KINDS = {1: ("|u1", torch.uint8), 2: ("<i2", torch.int16), 4: ("<i4", torch.int32)}
_KINDS[8] = ("<i8", torch.int64)


class Array:
    """Memory of a device, as other libraries take it: ``__cuda_array_interface__``, version 3."""

    def __init__(self, address: int, shape: tuple[int, ...], kind: str, owner: object) -> None:
        self.owner = owner
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": kind,
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


class TorchCuda:
    """A device of this process, by torch's ordinal, which is the driver's."""

    def __init__(self, ordinal: int) -> None:
        if not torch.backends.cuda.is_built():
            raise NoDeviceError(
                f"torch {torch.__version__} is built without CUDA; install one with"
            )
        self._device, self._ordinal = torch.device("cuda", ordinal), ordinal
        self.name = str(self._device)
        self._streams: dict[int, Any] = {}

    def holds(self, tensor: torch.Tensor) -> bool:
        return bool(tensor.is_cuda and tensor.get_device() == self._ordinal)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=self._device)

    like = staticmethod(torch.empty_like)

    def copied(self, host: torch.Tensor) -> torch.Tensor:
        return host.to(self._device)

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=True)

    def view(
        self, address: int, shape: tuple[int, ...], dtype: torch.dtype, owner: object
    ) -> torch.Tensor:
        if not math.prod(shape):
            return self.empty(shape, dtype)
        kind, whole = _KINDS[dtype.itemsize]
        array = Array(address, shape, kind, owner)
        tensor = torch.as_tensor(array, dtype=whole, device=self._device)
        if tensor.data_ptr() != address:
            raise AssertionError(f"moewire: torch copied {shape} {dtype} instead of viewing it")
        return tensor.view(dtype)

    def stream(self) -> Any:
        """An object per number, made once: torch makes one at every call.

        If the driver gives a number to another stream later, it then means that stream.
        """
        if _current_number is None:
            return torch.cuda.current_stream(self._device)
        number = _current_number(self._ordinal)
        stream = self._streams.get(number)
        if stream is None:
            if len(self._streams) >= _MAX_STREAMS:
                self._streams.clear()
            stream = self._streams[number] = torch.cuda.current_stream(self._device)
        return stream

    def handle(self, stream: Any) -> int:
        return int(stream.cuda_stream)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = torch.cuda.stream(stream)
        return context

    def side(self) -> Any:
        return torch.cuda.Stream(self._device, priority=_greatest_priority(self._device))

    def follow(self, stream: Any, other: Any) -> None:
        stream.wait_stream(other)

    def record(self, stream: Any) -> Any:
        return stream.record_event()

    def wait(self, stream: Any, event: Any) -> None:
        stream.wait_event(event)

    def finish(self, stream: Any) -> None:
        stream.synchronize()

    def capturing(self, stream: Any) -> bool:
        with torch.cuda.stream(stream):
            return bool(torch.cuda.is_current_stream_capturing())

    def recording(self) -> bool:
        if torch.cuda.current_device() != self._ordinal:
            return self.capturing(self.stream())
        return bool(torch.cuda.is_current_stream_capturing())

    def keep(self, tensor: torch.Tensor, stream: Any) -> None:
        tensor.record_stream(stream)


# How torch's own compiler asks for the number of a device's current stream. It may be missing.
_current_number: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_MAX_STREAMS = 64  # that are known of a device


place: Callable[[int], Place] = TorchCuda


def current() -> int | None:
    """The ordinal of torch's current CUDA device; None where torch has none."""
    return torch.cuda.current_device() if torch.cuda.is_available() else None


def chosen(device: str | torch.device | None) -> str | torch.device:
    """The device where a client of a GPU-only library expects its buffer, unless it names one.

    On torch's current CUDA device; on the CPU where there is none.
    """
    if device is not None:
        return device
    ordinal = current()
    return "cpu" if ordinal is None else f"cuda:{ordinal}"


def ordinal_of(index: int | None) -> int:
    """Of ``torch.device("cuda")`` it is the current device's."""
    if index is not None:
        return index
    return current() or 0
