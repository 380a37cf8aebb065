"""What a call costs when there is nothing to move."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from ctypes import byref

import torch
import torch.distributed as dist

from .. import _abi as abi
from .._cpu.operation import start
from .._ep import dispatch
from .._native.lib import library
from ..buffer import Buffer
from . import calls
from .compiler import CompileError

_CALLS = 500
_ROUNDS = 40


def _per_call_us(call: Callable[[], object]) -> float:
    """The median over rounds of the mean of one round."""
    rounds = []
    for _ in range(_ROUNDS):
        start_time = time.perf_counter()
        for _ in range(_CALLS):
            call()
        rounds.append((time.perf_counter() - start_time) / _CALLS * 1e6)
    return statistics.median(rounds)


def measure() -> dict[str, float]:
    """Microseconds per call, of one rank alone with T = 0."""
    with Buffer.from_store(dist.HashStore(), 0, 1) as buffer:
        own = _Calls(buffer)
        own.python_dispatch()
        costs = {
            "abi_version_call": _per_call_us(library().abi_version),
            "ctypes_dispatch": _per_call_us(own.ctypes_dispatch),
            "python_call": _per_call_us(own.python_call),
            "python_dispatch": _per_call_us(own.python_dispatch),
        }
        return costs | own.from_c()


class _Calls:
    """The same dispatch and release, with more and more of what surrounds it."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer, self._runtime = buffer, buffer.runtime
        self._x = torch.empty((0, 128), dtype=torch.bfloat16)
        self._topk_idx = torch.empty((0, 1), dtype=torch.int64)
        request = self._request()
        plan = self._runtime.plan_of(request)
        empty, kind = torch.empty_like, abi.mw_dispatch_result_t
        raw = kind(abi.SIZE_OF[kind])
        self._outputs = empty(plan.counts), empty(plan.layout), raw
        self._args, self._op = plan.args.take(), abi.mw_op_t()
        dispatch.fill(self._args, request, (0, 0), self._outputs, abi.MW_PHASE_DONE)

    def _request(self) -> dispatch.Request:
        return dispatch.Request(self._x, self._topk_idx, None, 1, 1, -1, 0)

    def python_dispatch(self) -> None:
        """As a user calls it; the handle is dropped, which releases it."""
        self._buffer.dispatch(self._x, self._topk_idx, None, 1, 1, -1, use_fp8=False)

    def python_call(self) -> None:
        """Arguments checked, struct filled and call made; no tensor and no handle made."""
        runtime, request = self._runtime, self._request()
        plan, phase = runtime.plan_of(request), abi.MW_PHASE_DONE
        args = plan.args.take()
        dispatch.fill(args, request, (0, 0), self._outputs, phase)
        start(runtime, runtime.lib.buffer_dispatch, args, phase, (request,))
        plan.args.release(args)
        runtime.lib.handle_release(self._outputs[2].handle)

    def ctypes_dispatch(self) -> None:
        """The struct is there already: ctypes and the library only."""
        runtime = self._runtime
        runtime.check(runtime.lib.buffer_dispatch(runtime.id, self._args, self._op))
        runtime.check(runtime.lib.handle_release(self._outputs[2].handle))

    def from_c(self) -> dict[str, float]:
        """The same from a loop in C; nothing where there is no compiler."""
        try:
            native = calls.load()
        except CompileError:
            return {}
        none, raw = abi.mw_combine_args_t(), self._outputs[2]
        state = calls.state_of(self._runtime.id.id, self._args, none, raw)

        def once() -> float:
            nanoseconds: float = native.calls_empty(byref(state), _CALLS)
            return nanoseconds * 1e-3

        return {"c_dispatch": statistics.median(once() for _ in range(_ROUNDS))}
