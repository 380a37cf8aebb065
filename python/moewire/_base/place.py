"""What Moewire asks about the device where a buffer's rows lie: the host's memory, or a GPU."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch

_CPU = torch.device("cpu")  # a name would be read at every call


class Place(Protocol):
    """One device. Streams and events are torch's objects."""

    name: str  # as torch writes it

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies on this device."""

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A new tensor for the current stream."""

    def like(self, template: torch.Tensor) -> torch.Tensor:
        """A new tensor with the shape and dtype of another one of this device. It is quicker."""

    def copied(self, host: torch.Tensor) -> torch.Tensor:
        """A tensor of the host on this device, for the current stream; on the host itself."""

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A new pinned tensor on the host; the device may write to it asynchronously."""

    def view(
        self, address: int, shape: tuple[int, ...], dtype: torch.dtype, owner: object
    ) -> torch.Tensor:
        """A contiguous tensor over memory of the device, which holds ``owner``."""

    def stream(self) -> Any:
        """The calling thread's current stream."""

    def handle(self, stream: Any) -> int:
        """The driver's number of a stream."""

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Makes a stream the current one."""

    def side(self) -> Any:
        """A new stream, of the highest priority."""

    def follow(self, stream: Any, other: Any) -> None:
        """Makes a stream wait for all present work of another one."""

    def record(self, stream: Any) -> Any:
        """An event at the present end of a stream."""

    def wait(self, stream: Any, event: Any) -> None:
        """Makes a stream wait for an event."""

    def finish(self, stream: Any) -> None:
        """Waits until the device has come to the end of a stream."""

    def capturing(self, stream: Any) -> bool:
        """Whether a stream's work is being recorded into a graph."""

    def recording(self) -> bool:
        """``capturing`` for the current stream. It is quicker."""

    def keep(self, tensor: torch.Tensor, stream: Any) -> None:
        """Keeps a tensor's memory from reuse until a stream has finished its present work."""


class Host:
    """The CPU: its one stream is the calling thread, which has finished all that it began."""

    name = "cpu"

    def holds(self, tensor: torch.Tensor) -> bool:
        return bool(tensor.is_cpu)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=_CPU)

    like = staticmethod(torch.empty_like)
    pinned = empty

    def copied(self, host: torch.Tensor) -> torch.Tensor:
        return host

    def view(
        self, address: int, shape: tuple[int, ...], dtype: torch.dtype, owner: object
    ) -> torch.Tensor:
        raise NotImplementedError("a mapping of the workspace makes its views")

    def stream(self) -> Any:
        return torch.cpu.current_stream()

    side = stream

    def handle(self, stream: Any) -> int:
        return 0

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        return nullcontext()

    def follow(self, stream: Any, other: Any) -> None: ...

    def record(self, stream: Any) -> Any: ...

    def wait(self, stream: Any, event: Any) -> None: ...

    def finish(self, stream: Any) -> None: ...

    def capturing(self, stream: Any) -> bool:
        return False

    def recording(self) -> bool:
        return False

    def keep(self, tensor: torch.Tensor, stream: Any) -> None: ...


HOST: Place = Host()
