"""A device of the emulated driver, with the interface of ``Place``.

Its memory is the process's, so CPU tensors stand for tensors of the device: those that were put
there (``AsDevice``), or any of them, unless it is ``strict``. torch's own operations do not wait
for its streams: call ``synchronize`` first.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from .as_device import AsDevice

_CAPTURING = 1
_THREAD_LOCAL = 1
_OUT_OF_MEMORY = 2


class Stream:
    def __init__(self, number: int) -> None:
        self.number = number


class Emulated:
    """One per process, driver and device; each thread has a current stream of its own."""

    def __init__(self, driver: Path, strict: bool = True, ordinal: int = 0) -> None:
        self.name = f"cuda:{ordinal}"
        self._strict = strict
        self._cu = ctypes.CDLL(str(driver))
        self._cu.emulator_report.restype = ctypes.c_char_p
        self._local = threading.local()
        self._kept: list[tuple[torch.Tensor, int]] = []
        self._pools: dict[int, list[torch.Tensor]] = {}  # of graphs
        self._lock = threading.Lock()
        self.call("cuInit", 0)
        self._context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), ordinal)

    def call(self, name: str, *args: Any) -> None:
        status = getattr(self._cu, name)(*args)
        assert status == 0, f"{name} gave {status}"

    def fail(self, name: str, after: int) -> None:
        """Lets the call fail once, after ``after`` calls that succeed."""
        self._cu.emulator_fail(name.encode(), after, _OUT_OF_MEMORY)

    def _enter(self) -> None:
        if not getattr(self._local, "entered", False):
            self.call("cuCtxPushCurrent_v2", self._context)
            self._local.entered = True

    def _new(self, name: str, *args: Any) -> int:
        self._enter()
        made = ctypes.c_void_p()
        self.call(name, ctypes.byref(made), *args)
        return made.value or 0

    def holds(self, tensor: torch.Tensor) -> bool:
        return isinstance(tensor, AsDevice) if self._strict else tensor.is_cpu

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the device, of the same values."""
        return self._of_device(tensor.clone())

    def _of_device(self, tensor: torch.Tensor) -> torch.Tensor:
        if not self._strict or isinstance(tensor, AsDevice):
            return tensor
        return AsDevice.of(tensor.detach())

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return self._pooled(self._of_device(torch.empty(shape, dtype=dtype)))

    def like(self, template: torch.Tensor) -> torch.Tensor:
        return self._pooled(torch.empty_like(template))

    def _pooled(self, made: torch.Tensor) -> torch.Tensor:
        pool: list[torch.Tensor] | None = getattr(self._local, "pool", None)
        if pool is not None:
            pool.append(made)
        return made

    def copied(self, host: torch.Tensor) -> torch.Tensor:
        return self._pooled(self._of_device(host))

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype)

    def view(
        self, address: int, shape: tuple[int, ...], dtype: torch.dtype, owner: object
    ) -> torch.Tensor:
        if not math.prod(shape):
            return self.empty(shape, dtype)
        memory = (ctypes.c_ubyte * (math.prod(shape) * dtype.itemsize)).from_address(address)
        memory.owner = owner  # type: ignore[attr-defined]
        return self._of_device(torch.frombuffer(memory, dtype=dtype).view(shape))

    def stream(self) -> Stream:
        if not hasattr(self._local, "stream"):
            self._local.stream = self.side()
        current: Stream = self._local.stream
        return current

    def handle(self, stream: Stream) -> int:
        return stream.number

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self._local.stream = self.stream(), stream
        if getattr(self._local, "waits", False):
            self.synchronize(stream)
        try:
            yield
        finally:
            self._local.stream = before

    def side(self) -> Stream:
        return Stream(self._new("cuStreamCreateWithPriority", 1, 0))

    def follow(self, stream: Stream, other: Stream) -> None:
        self.wait(stream, self.record(other))

    def record(self, stream: Stream) -> int:
        event = self._new("cuEventCreate", 2)
        self.call("cuEventRecord", ctypes.c_void_p(event), ctypes.c_void_p(stream.number))
        return event

    def wait(self, stream: Stream, event: int) -> None:
        self._enter()
        number = ctypes.c_void_p(stream.number)
        self.call("cuStreamWaitEvent", number, ctypes.c_void_p(event), 0)

    def capturing(self, stream: Stream) -> bool:
        self._enter()
        status = ctypes.c_int()
        number = ctypes.c_void_p(stream.number)
        self.call("cuStreamIsCapturing", number, ctypes.byref(status))
        return status.value == _CAPTURING

    def recording(self) -> bool:
        return self.capturing(self.stream())

    def finish(self, stream: Stream) -> None:
        self.synchronize(stream)

    def keep(self, tensor: torch.Tensor, stream: Stream) -> None:
        with self._lock:
            self._kept.append((tensor, stream.number))

    # Additions for tests.

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Making a stream the current one waits for it first: torch is about to copy."""
        self._local.waits = True
        try:
            yield
        finally:
            self._local.waits = False

    def left(self) -> list[str]:
        """The driver's allocations that were not returned, and the rules of it that were broken."""
        text: bytes = self._cu.emulator_report()
        return text.decode().splitlines()

    def forget(self) -> None:
        """Drops the tensors that were kept for streams."""
        with self._lock:
            self._kept.clear()

    def destroy(self, graph: int) -> None:
        self.call("cuGraphExecDestroy", ctypes.c_void_p(graph))
        self._pools.pop(graph)

    def synchronize(self, stream: Stream | None = None) -> None:
        """Waits until the device has come to the end of a stream: the current one."""
        self._enter()
        number = (stream or self.stream()).number
        self.call("cuStreamSynchronize", ctypes.c_void_p(number))
        with self._lock:
            self._kept = [(tensor, other) for tensor, other in self._kept if other != number]

    def synchronize_all(self) -> None:
        """Waits for all of this process's streams."""
        self._enter()
        self.call("cuCtxSynchronize")
        self.forget()

    @contextmanager
    def captured(self, stream: Stream) -> Iterator[list[int]]:
        """Records launches; afterwards there is one graph in the list.

        The graph keeps the memory that is allocated meanwhile, as torch's graphs do.
        """
        self._enter()
        graph: list[int] = []
        pool: list[torch.Tensor] = []
        self._local.pool = pool
        self.call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream.number), _THREAD_LOCAL)
        try:
            yield graph
        finally:
            self._local.pool = None
        made = ctypes.c_void_p()
        self.call("cuStreamEndCapture", ctypes.c_void_p(stream.number), ctypes.byref(made))
        run = ctypes.c_void_p()
        self.call("cuGraphInstantiateWithFlags", ctypes.byref(run), made, ctypes.c_uint64(0))
        self.call("cuGraphDestroy", made)
        graph.append(run.value or 0)
        self._pools[graph[0]] = pool

    def replay(self, graph: int, stream: Stream) -> None:
        self._enter()
        self.call("cuGraphLaunch", ctypes.c_void_p(graph), ctypes.c_void_p(stream.number))
