"""Moewire as it is measured: dispatch and combine of one workload, identity experts."""

from __future__ import annotations

from typing import Any

import torch

from ..buffer import Buffer
from ..event import Hook
from ..handle import Handle
from . import workload


class Moewire:
    """One rank; expert outputs are the rows received."""

    def __init__(self, work: workload.Workload, buffer: Buffer) -> None:
        self._work = work
        self._buffer = buffer
        shape = (work.num_local_experts, work.num_ranks * work.num_tokens, work.hidden)
        self._elsewhere = torch.empty(shape, dtype=torch.bfloat16)
        self._out = torch.empty_like(work.x)
        self._handle: Handle | None = None
        self._in_place = self._elsewhere
        self._received: Any = None

    def dispatch(self) -> None:
        """Blocking, bf16 or fp8, into the workspace."""
        self._dispatch(False)

    def begin_dispatch(self) -> Hook:
        """The same up to the hook, which ends it."""
        hook = self._dispatch(True)
        assert hook is not None
        return hook

    def _dispatch(self, return_recv_hook: bool) -> Hook | None:
        work = self._work
        recv_x, recv_count, self._handle, _, hook = self._buffer.dispatch(
            work.x,
            work.topk_idx,
            None,
            work.num_tokens,
            work.num_experts,
            -1,
            use_fp8=work.fp8,
            return_recv_hook=return_recv_hook,
        )
        self._received = recv_x, recv_count
        return hook

    def compute(self) -> None:
        """The identity expert, into the combine buffer and into ordinary memory."""
        assert self._handle is not None
        recv_x, recv_count = self._received
        self._in_place = self._buffer.get_next_combine_buffer(self._handle)
        for expert, count in enumerate(recv_count.tolist()):
            if self._work.fp8:
                data, scales = recv_x
                rows = workload.dequantise(data[expert, :count], scales[expert, :count])
            else:
                rows = recv_x[expert, :count]
            self._in_place[expert, :count] = rows
            self._elsewhere[expert, :count] = rows

    def combine_zero_copy(self) -> torch.Tensor:
        """From the combine buffer."""
        return self._combine(self._in_place, True)[0]

    def begin_combine(self) -> Hook:
        """The same up to the hook, which ends it."""
        hook = self._combine(self._in_place, True, True)[1]
        assert hook is not None
        return hook

    def combine_in_place(self) -> torch.Tensor:
        """From the combine buffer of the last dispatch, as it lies."""
        assert self._handle is not None
        self._in_place = self._buffer.get_next_combine_buffer(self._handle)
        return self._combine(self._in_place, True)

    def combine(self) -> torch.Tensor:
        """From ordinary memory: one more copy of the valid rows."""
        return self._combine(self._elsewhere, False)[0]

    def _combine(
        self, x: torch.Tensor, zero_copy: bool, return_recv_hook: bool = False
    ) -> tuple[torch.Tensor, Hook | None]:
        work, handle = self._work, self._handle
        assert handle is not None
        arguments = (x, work.topk_idx, work.weights, None, -1, handle)
        out, _, hook = self._buffer.combine(
            *arguments, zero_copy=zero_copy, return_recv_hook=return_recv_hook, out=self._out
        )
        return out, hook
