"""A peer: what one writes with ``torch.distributed`` alone. Pack, ``all_to_all_single``, unpack."""

from __future__ import annotations

import torch
import torch.distributed as dist

from .workload import Workload, dequantise, quantise


class Gloo:
    """Dispatch and combine over a gloo group; expert outputs are the rows received."""

    name = "gloo"
    version = f"torch {torch.__version__}"
    remote = False
    tolerance = 0.0

    def __init__(self, work: Workload, group: dist.ProcessGroup) -> None:
        self._work = work
        self._group = group
        rows = work.num_local_experts * work.num_ranks * work.num_tokens
        self._packed = torch.zeros((rows, work.row_bytes), dtype=torch.uint8)
        self._outputs = torch.zeros((rows, work.hidden), dtype=torch.bfloat16)
        self._order = torch.empty(0, dtype=torch.int64)
        self._target = torch.empty(0, dtype=torch.int64)
        self._sent: list[int] = []
        self._received: list[int] = []
        self._out = torch.empty(0, dtype=torch.bfloat16)

    def dispatch(self, begin: float = 0.0) -> tuple[float, float]:
        """Leaves the received rows packed by local expert."""
        work = self._work
        flat = work.topk_idx.reshape(-1)
        self._order = flat.argsort(stable=True)
        counts = flat.bincount(minlength=work.num_experts).view(work.num_ranks, -1)
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts, group=self._group)
        self._sent, self._received = counts.sum(1).tolist(), theirs.sum(1).tolist()
        rows = self._cast().index_select(0, self._order // work.topk_idx.shape[1])
        arrived = torch.empty((sum(self._received), work.row_bytes), dtype=torch.uint8)
        dist.all_to_all_single(arrived, rows, self._received, self._sent, group=self._group)
        self._target = self._positions(theirs)
        self._packed.index_copy_(0, self._target, arrived)
        return begin, begin  # the caller takes the time

    def _cast(self) -> torch.Tensor:
        work = self._work
        if not work.fp8:
            return work.x.view(torch.uint8)
        data, scales = quantise(work.x)
        return torch.cat([data.view(torch.uint8), scales.view(torch.uint8)], dim=1)

    def _positions(self, counts: torch.Tensor) -> torch.Tensor:
        """Row numbers, expert-major, of rows that arrive by (source, expert)."""
        stride = self._work.num_ranks * self._work.num_tokens
        begin = counts.cumsum(0) - counts
        begin += torch.arange(counts.shape[1]) * stride
        sizes = counts.reshape(-1)
        starts = (begin.reshape(-1) - (sizes.cumsum(0) - sizes)).repeat_interleave(sizes)
        return starts + torch.arange(len(starts))

    def compute(self, begin: float = 0.0) -> tuple[float, float]:
        """The identity expert."""
        rows = self._packed[self._target]
        hidden = self._work.hidden
        if self._work.fp8:
            data = rows[:, :hidden].contiguous().view(torch.float8_e4m3fn)
            values = dequantise(data, rows[:, hidden:].contiguous().view(torch.float32))
        else:
            values = rows.view(torch.bfloat16)
        self._outputs[self._target] = values
        return begin, begin

    def combine(self, begin: float = 0.0) -> tuple[float, float]:
        """Multiplied and added in float32, in order of k, rounded once."""
        work = self._work
        rows = self._outputs.index_select(0, self._target).view(torch.uint8)
        back = torch.empty((sum(self._sent), 2 * work.hidden), dtype=torch.uint8)
        dist.all_to_all_single(back, rows, self._sent, self._received, group=self._group)
        ordered = torch.empty_like(back)
        ordered[self._order] = back
        values = ordered.view(torch.bfloat16).view(*work.topk_idx.shape, work.hidden)
        total = torch.zeros((work.num_tokens, work.hidden))
        for k in range(values.shape[1]):
            total += work.weights[:, k : k + 1] * values[:, k].float()
        self._out = total.bfloat16()
        return begin, begin

    def result(self) -> torch.Tensor:
        """bf16 [T, H], of the last combine."""
        return self._out

    def close(self) -> None:
        """The group is the caller's."""


def connect(work: Workload, group: dist.ProcessGroup, folder: str) -> Gloo:
    """Nothing is to be installed or started."""
    return Gloo(work, group)
