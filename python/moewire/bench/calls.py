"""Moewire as a C program uses it: the same operations through the C ABI, called from C."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, addressof, c_double, c_int64, c_uint64, c_void_p, cast
from typing import Any, ClassVar

import torch

from .. import _abi as abi
from .._native.lib import library
from . import compiler, workload
from .timed import Timed


class _Calls(Structure):
    _fields_: ClassVar[list[tuple[str, Any]]] = [
        ("dispatch", c_void_p),
        ("combine", c_void_p),
        ("release", c_void_p),
        ("buffer", c_uint64),
        ("dispatch_args", c_void_p),
        ("combine_args", c_void_p),
        ("handle", c_void_p),
        ("outputs", c_void_p),
        ("combine_handle", c_void_p),
        ("combine_x", c_void_p),
    ]


def load() -> ctypes.CDLL:
    """The caller, compiled at its first use; raises ``CompileError``."""
    path = compiler.library(compiler.SOURCES / "calls.c")
    native = ctypes.CDLL(str(path))
    native.calls_empty.restype = c_double
    native.calls_empty.argtypes = [POINTER(_Calls), c_int64]
    return native


def state_of(
    buffer_id: int,
    dispatch: abi.mw_dispatch_args_t,
    combine: abi.mw_combine_args_t,
    result: abi.mw_dispatch_result_t,
) -> _Calls:
    """What the C side needs; the structs must outlive it."""
    lib: Any = library()
    functions = (lib.buffer_dispatch, lib.buffer_combine, lib.handle_release)
    kind, answer = abi.mw_combine_args_t, abi.mw_dispatch_result_t
    return _Calls(
        *(cast(function, c_void_p).value for function in functions),
        buffer_id,
        addressof(dispatch),
        addressof(combine),
        addressof(result) + answer.handle.offset,
        addressof(result) + answer.combine_x.offset,
        addressof(combine) + kind.handle.offset,
        addressof(combine) + kind.x.offset,
    )


class Calls:
    """One rank, with a Buffer's id; expert outputs are the rows received."""

    def __init__(
        self, work: workload.Workload, buffer_id: int, native: ctypes.CDLL, spin: float
    ) -> None:
        self._work = work
        experts, topk = work.num_local_experts, work.topk_idx.shape[1]
        self._counts = torch.zeros(experts, dtype=torch.int32)
        self._layout = torch.zeros((experts, work.num_ranks), dtype=torch.int64)
        self.out = torch.empty_like(work.x)
        self._result = abi.mw_dispatch_result_t(size=abi.SIZE_OF[abi.mw_dispatch_result_t])
        self._dispatch = abi.mw_dispatch_args_t(
            size=abi.SIZE_OF[abi.mw_dispatch_args_t],
            flags=abi.MW_DISPATCH_FP8 if work.fp8 else 0,
            x=work.x.data_ptr(),
            topk_idx=work.topk_idx.data_ptr(),
            num_tokens=work.num_tokens,
            hidden=work.hidden,
            num_topk=topk,
            num_max_tokens_per_rank=work.num_tokens,
            num_experts=work.num_experts,
            timeout_us=-1,
            slice_us=-1,
            phase=abi.MW_PHASE_DONE,
            recv_count=self._counts.data_ptr(),
            layout_range=self._layout.data_ptr(),
            result=addressof(self._result),
        )
        self._combine = abi.mw_combine_args_t(
            size=abi.SIZE_OF[abi.mw_combine_args_t],
            flags=abi.MW_COMBINE_ZERO_COPY,
            topk_idx=work.topk_idx.data_ptr(),
            topk_weights=work.weights.data_ptr(),
            out=self.out.data_ptr(),
            num_tokens=work.num_tokens,
            num_topk=topk,
            timeout_us=-1,
            slice_us=-1,
            phase=abi.MW_PHASE_DONE,
        )
        state = state_of(buffer_id, self._dispatch, self._combine, self._result)
        self.timed = Timed(native, "calls", state, spin)

    def compute(self) -> None:
        """The identity expert, in place, on the rows and scales that C was told of."""
        work = self._work
        rows = work.num_ranks * work.num_tokens
        shape = (work.num_local_experts, rows, work.hidden)
        outputs = _tensor(self._result.combine_x, torch.bfloat16, shape)
        kind = torch.float8_e4m3fn if work.fp8 else torch.bfloat16
        received = _tensor(self._result.recv_x, kind, shape)
        for expert, count in enumerate(self._counts.tolist()):
            values = received[expert, :count]
            if work.fp8 and count:
                groups = (work.num_local_experts, work.hidden // workload.FP8_BLOCK, rows)
                scales = _tensor(self._result.recv_scales, torch.float32, groups)
                values = workload.dequantise(values, scales[expert, :, :count].T)
            outputs[expert, :count] = values


def _tensor(address: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    count = 1
    for size in shape:
        count *= size
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
