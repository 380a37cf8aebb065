"""Operations from Python as a model makes them: the calls that they make to the driver and
torch."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch

import moewire

from . import cases, oracle, verify
from .as_device import AsDevice
from .cases import Case
from .emulated import Emulated
from .jobs_cuda import TIMEOUT_SECONDS, TIMEOUT_US, Make, inputs, outputs_of, size_for
from .jobs_oracle import CALLS

NUM_OPERATIONS = 100
# Launches, and calls that order streams. The last four are torch's part, here the stand-in's.
LAUNCHING = {
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuLaunchKernel",
    "cuStreamIsCapturing",
    "cuEventCreate",
    "cuEventRecord",
    "cuStreamWaitEvent",
}
# Calls by which the host waits for a device's tensor, or copies it to itself.
_WAITING = ("cpu", "tolist", "numpy", "item", "__bool__", "__int__", "__float__", "__index__")


def called(place: Emulated) -> dict[str, int]:
    """How often each function of the driver was called so far, by the library and by tests."""
    driver = place._cu
    driver.emulator_called.restype = ctypes.c_char_p
    driver.emulator_calls.restype = ctypes.c_ulong
    names: bytes = driver.emulator_called()
    return {name.decode(): driver.emulator_calls(name) for name in names.split()}


@contextmanager
def waits(place: Emulated) -> Iterator[list[str]]:
    """The calls made meanwhile by which the host waits, by name."""
    found: list[str] = []

    def counted(name: str, stock: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            found.append(name)
            return stock(*args, **kwargs)

        return call

    watched: list[tuple[Any, str]] = [(AsDevice, name) for name in _WAITING]
    watched += [(place, "finish"), (place, "synchronize"), (torch.cuda, "synchronize")]
    watched += [(kind, name) for kind in (torch.cuda.Stream, torch.cuda.Event)
                for name in ("synchronize", "query")]  # fmt: skip
    own = [(of, name, vars(of).get(name)) for of, name in watched]
    for of, name in watched:
        setattr(of, name, counted(name, getattr(of, name)))
    try:
        yield found
    finally:
        for of, name, stock in own:
            if stock is None:
                delattr(of, name)
            else:
                setattr(of, name, stock)


class Layer:
    """One rank's operations: its inputs stay, the experts return ones."""

    def __init__(self, place: Emulated, buffer: moewire.Buffer, case: Case, rank: int) -> None:
        self.buffer, self.case, self.rank = buffer, case, rank
        self.x, self.topk = inputs(place, case, rank)
        self.active = place.put(torch.ones(case.num_ranks, dtype=torch.int32))
        self.weights = place.put(torch.from_numpy(case.weights[rank].copy()))
        shape = (case.num_local, case.num_ranks * case.num_max, case.hidden)
        self.y = place.put(torch.ones(shape, dtype=torch.bfloat16))
        self._written: list[Any] = []  # by the device; torch's allocator would keep it

    def run(self, number: int) -> torch.Tensor:
        case, how, fp8 = self.case, CALLS[number % 3], number % 2 == 1
        given = (self.x, self.topk, self.active, case.num_max, case.num_experts, TIMEOUT_US, fp8)
        result = self.buffer.dispatch(*given, **how)
        self._written.append(outputs_of(result))
        _, _, handle, event, hook = result
        self._finish(event, hook)
        given = (self.y, self.topk, self.weights, self.active, TIMEOUT_US, handle)
        out, event, hook = self.buffer.combine(*given, **how)
        self._written.append(out)
        self._finish(event, hook)
        return out

    def _finish(self, event: Any, hook: Any) -> None:
        if hook is not None:
            hook()
        if event.event is not None:
            event.current_stream_wait()

    def check(self, out: torch.Tensor) -> None:
        case, rank = self.case, self.rank
        ones = np.full(case.x[rank].shape, 0x3F80, dtype=np.uint16)  # of bf16
        given = dict.fromkeys(range(case.num_experts), ones)
        want = oracle.combine(case.topk[rank], case.weights[rank], given, case.hidden)
        verify.same(verify.bits(out), want, f"{case}: combine on rank {rank}")


class Asked:
    """What all ranks of this process ask for while they run."""

    def __init__(self, place: Emulated) -> None:
        self.place, self.calls = place, dict[str, int]()
        self.waits: list[str] = []

    @contextmanager
    def meanwhile(self) -> Iterator[None]:
        before = called(self.place)
        with waits(self.place) as self.waits:
            yield
        after = called(self.place)
        self.calls = {name: n - before.get(name, 0) for name, n in after.items()}
        self.calls = {name: n for name, n in self.calls.items() if n}


def launches_only(
    asked: Asked, make: Make, rank: int, seed: int, together: threading.Barrier
) -> None:
    """A hundred operations in all ways to call, bf16 and fp8."""
    size, place = together.parties, asked.place
    case = Case(size, 2 * size, 2, 128, 6, False, "uniform", (seed, 700, size))
    cases.fill(case, [6 - r for r in range(size)])
    with make(size_for([case]), device="cuda") as buffer:
        layer = Layer(place, buffer, case, rank)
        for number in range(6):  # streams are made when they are first needed
            layer.run(number)
        place.synchronize()
        together.wait(TIMEOUT_SECONDS)
        with asked.meanwhile() if rank == 0 else nullcontext():
            together.wait(TIMEOUT_SECONDS)
            outs = [layer.run(number) for number in range(NUM_OPERATIONS)]
            together.wait(TIMEOUT_SECONDS)
        together.wait(TIMEOUT_SECONDS)
        place.synchronize()
        for out in outs:
            layer.check(out)
