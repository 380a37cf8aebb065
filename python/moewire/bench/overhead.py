"""What a call costs when there is nothing to move."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from ctypes import byref

import torch
import torch.distributed as dist

from .. import _abi as abi
from .. import _dispatch
from .._lib import library
from ..buffer import Buffer

_CALLS = 2000
_ROUNDS = 7


def _per_call_us(call: Callable[[], object], calls: int) -> float:
    """The median over rounds of the mean of one round."""
    rounds = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        rounds.append((time.perf_counter() - start) / calls * 1e6)
    return statistics.median(rounds)


def measure() -> dict[str, float]:
    """Microseconds per call, of one rank alone with T = 0."""
    lib = library()
    x = torch.empty((0, 128), dtype=torch.bfloat16)
    topk_idx = torch.empty((0, 1), dtype=torch.int64)
    with Buffer.from_store(dist.HashStore(), 0, 1) as buffer:

        def python_dispatch() -> None:
            buffer.dispatch(x, topk_idx, None, 1, 1, -1, use_fp8=False)

        python_dispatch()
        return {
            "abi_version_call": _per_call_us(lib.abi_version, _CALLS),
            "core_dispatch": _per_call_us(_core_dispatch(buffer, x, topk_idx), _CALLS),
            "python_dispatch": _per_call_us(python_dispatch, _CALLS),
        }


def _core_dispatch(buffer: Buffer, x: torch.Tensor, topk_idx: torch.Tensor) -> Callable[[], object]:
    """The same dispatch and release with the struct filled beforehand: ctypes and core only."""
    phase = abi.MW_PHASE_DONE
    request = _dispatch.Request(x, topk_idx, None, 1, 1, -1, False, False, phase)
    runtime, lib = buffer.runtime, buffer.runtime.lib
    plan = _dispatch.checked_plan(runtime, request)
    outputs = _dispatch.outputs_for(plan)
    args, op = plan.args.take(), abi.mw_op_t()
    _dispatch.fill(args, request, (0, 0), outputs)

    def call() -> None:
        runtime.check(lib.buffer_dispatch(runtime.id, byref(args), byref(op)))
        runtime.check(lib.handle_release(outputs[2].handle))

    return call
