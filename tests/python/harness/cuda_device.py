"""A CUDA device as tests use it: torch's, by the driver of this machine.

It has what ``Emulated`` has, so that the same jobs run on both.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from moewire._cuda.torch_cuda import TorchCuda

from . import required

# A driver, such as libcuda.so.1, that tests run on instead of the emulator; `make gpu-test`
# sets it. A path is one of the emulator, compiled elsewhere.
VARIABLE = "MOEWIRE_CUDA_TEST"
_WARM_BYTES = (32 << 20, *[1 << 19] * 16)


def asked() -> bool:
    """Whether tests are to run on a device."""
    return bool(name := os.environ.get(VARIABLE, "")) and os.sep not in name


def wanted() -> bool:
    """The same; skips, or fails if it is required, where torch has none."""
    if not asked():
        return False
    if not torch.cuda.is_available():
        required.lacking("cuda", f"torch {torch.__version__} finds no CUDA device")
    return True


class CudaDevice(TorchCuda):
    """One per process. Each thread that has ranks makes a stream of ``side`` its current one.

    Ranks of one process wait for one another on the device, so no thread may wait for the whole
    device meanwhile. A request for memory to the driver may do that, so new streams get memory
    at once.
    """

    def __init__(self) -> None:
        super().__init__(0)
        self._kept: list[tuple[torch.Tensor, int]] = []
        self._lock = threading.Lock()

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the device, of the same values."""
        return tensor.to(self._device)

    def side(self) -> Any:
        stream = super().side()
        with torch.cuda.stream(stream):
            warm = [self.empty((size,), torch.uint8) for size in _WARM_BYTES]
            del warm  # torch keeps it for this stream
        return stream

    def keep(self, tensor: torch.Tensor, stream: Any) -> None:
        super().keep(tensor, stream)
        with self._lock:
            self._kept.append((tensor, self.handle(stream)))

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """torch's operations wait for its streams by themselves."""
        yield

    def left(self) -> list[str]:
        """Nothing: a device has no list of its allocations."""
        return []

    def forget(self) -> None:
        with self._lock:
            self._kept.clear()

    def synchronize(self, stream: Any = None) -> None:
        stream = stream or self.stream()
        stream.synchronize()
        with self._lock:
            number = self.handle(stream)
            self._kept = [(tensor, other) for tensor, other in self._kept if other != number]

    def synchronize_all(self) -> None:
        """Only where this process has one rank."""
        torch.cuda.synchronize()
        self.forget()

    @contextmanager
    def captured(self, stream: Any) -> Iterator[list[torch.cuda.CUDAGraph]]:
        """Records what is launched; afterwards there is one graph in the list."""
        graphs: list[torch.cuda.CUDAGraph] = []
        graph = torch.cuda.CUDAGraph()
        with self.on(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                yield graphs
            except BaseException:
                with suppress(RuntimeError):  # else all that follows is in the capture, too
                    graph.capture_end()
                raise
            graph.capture_end()
        graphs.append(graph)

    def replay(self, graph: torch.cuda.CUDAGraph, stream: Any) -> None:
        with self.on(stream):
            graph.replay()

    def destroy(self, graph: torch.cuda.CUDAGraph) -> None:
        graph.reset()
