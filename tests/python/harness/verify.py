"""Runs a case on the library, and compares with the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import moewire

from . import oracle
from .cases import Case

# Jobs set another timeout where kernels run on processors that are busy.
TIMEOUT_US = 30_000_000
# Whether errors in the contents of tensors, or between ranks, are raised by a later call, and an
# update has to follow.
REPORTED_LATER = False
# Whether rows that a lost rank had reserved at an owner stay empty.
LOST_LEAVE_GAPS = False


def bits(tensor: torch.Tensor) -> np.ndarray:
    """bf16 as uint16, fp8 as uint8; anything else as it is."""
    tensor = tensor.cpu()
    if tensor.dtype is torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(np.uint16)
    if tensor.dtype is torch.float8_e4m3fn:
        return tensor.contiguous().view(torch.uint8).numpy()
    return tensor.numpy()


def bf16(array: np.ndarray) -> torch.Tensor:
    """uint16 as a bf16 tensor of its own."""
    return torch.from_numpy(array.astype(np.uint16).view(np.int16).copy()).view(torch.bfloat16)


def _float32(array: np.ndarray) -> torch.Tensor:
    """A tensor of its own, NaN bits and all."""
    return torch.from_numpy(array.view(np.int32).copy()).view(torch.float32)


def same(got: np.ndarray, want: np.ndarray, what: str) -> None:
    """Equal in every bit."""
    if got.dtype.kind == "f":
        got, want = got.view(np.uint32), want.view(np.uint32)
    if got.shape != want.shape or not np.array_equal(got, want):
        wrong = np.argwhere(got != want) if got.shape == want.shape else []
        where = (
            f"{len(wrong)} of {got.size} differ, first at {wrong[0].tolist()}" if len(wrong) else ""
        )
        raise AssertionError(f"{what}: shapes {got.shape} and {want.shape}; {where}")


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """1 minus the cosine of the shifted values; what upstream's tests call calc_diff."""
    a, b = a.double() + 1, b.double() + 1
    return float(1 - 2 * (a * b).sum() / (a * a + b * b).sum())


class Received:
    """One rank's dispatch: what came back, and where each source's block lies.

    ``gaps``: there may be rows that a lost rank had reserved, and that nothing covers.
    """

    def __init__(self, case: Case, rank: int, result: Any, gaps: bool = False) -> None:
        self.case, self.rank, self.gaps = case, rank, gaps
        self.recv_x, self.recv_count, self.handle, self.event, self.hook = result
        self.blocks: dict[tuple[int, int], slice] = {}

    def finish(self) -> None:
        if self.hook is not None:
            self.hook()
        if self.event.event is not None:
            self.event.current_stream_wait()

    def check(self) -> None:
        """Counts, rows, src_info and layout of every (expert, source) pair."""
        case = self.case
        src_info, layout, num_max, hidden, experts = self.handle
        assert (num_max, hidden, experts) == (case.num_max, case.hidden, case.num_experts)
        self._check_shapes(src_info, layout)
        for local in range(case.num_local):
            self._check_expert(local, src_info[local].cpu().numpy(), layout[local].cpu().numpy())

    def _check_shapes(self, src_info: torch.Tensor, layout: torch.Tensor) -> None:
        case = self.case
        rows, local = case.num_ranks * case.num_max, case.num_local
        assert self.recv_count.shape == (local,) and self.recv_count.dtype is torch.int32
        assert src_info.shape == (local, rows) and src_info.dtype is torch.int32
        assert layout.shape == (local, case.num_ranks) and layout.dtype is torch.int64
        if not case.fp8:
            assert self.recv_x.shape == (local, rows, case.hidden)
            assert self.recv_x.dtype is torch.bfloat16 and self.recv_x.is_contiguous()
            return
        data, scales = self.recv_x
        assert data.shape == (local, rows, case.hidden) and data.dtype is torch.float8_e4m3fn
        assert scales.shape == (local, rows, case.hidden // (512 if case.ue8m0 else 128))
        assert scales.dtype is (torch.int32 if case.ue8m0 else torch.float32)
        assert scales.transpose(1, 2).is_contiguous()

    def _check_expert(self, local: int, src_info: np.ndarray, layout: np.ndarray) -> None:
        case = self.case
        expert = self.rank * case.num_local + local
        covered = []
        for source in range(case.num_ranks):
            tokens = oracle.tokens_for(case.topk[source], expert)
            begin, count = int(layout[source]) >> 32, int(layout[source]) & 0xFFFFFFFF
            assert count == len(tokens), f"{case}: expert {expert} source {source}: {count} rows"
            block = slice(begin, begin + count)
            self.blocks[local, source] = block
            covered += range(begin, begin + count)
            same(src_info[block], tokens.astype(np.int32), f"{case}: src_info of {expert}")
            self._check_rows(local, block, case.x[source][tokens], f"{case}: rows of {expert}")
        self._check_covered(covered, int(self.recv_count[local]))

    def _check_covered(self, covered: list[int], count: int) -> None:
        """Each row is of exactly one source, unless there may be gaps."""
        rows = range(count)
        complete = set(covered) <= set(rows) if self.gaps else sorted(covered) == list(rows)
        assert complete and len(set(covered)) == len(covered), f"{self.case}: layout"

    def _check_rows(self, local: int, block: slice, rows: np.ndarray, what: str) -> None:
        if not self.case.fp8:
            same(bits(self.recv_x[local, block]), rows, what)
            return
        data, scales = oracle.cast(rows, self.case.round_scale)
        same(bits(self.recv_x[0][local, block]), data, what)
        got = self.recv_x[1][local, block].contiguous().cpu().numpy()
        if self.case.ue8m0:
            same(got, oracle.exponent_words(scales), f"{what}, scales")
            return
        nan = np.isnan(scales)
        assert np.array_equal(np.isnan(got), nan), what
        same(np.where(nan, 0, got), np.where(nan, np.float32(0), scales), f"{what}, scales")

    def write_outputs(self, y: torch.Tensor) -> torch.Tensor:
        """Fills y as the experts would; rows that no rank sent become NaN."""
        make = _float32 if self.case.fp32_outputs else bf16
        y.view(torch.int16).fill_(-1)
        for (local, source), block in self.blocks.items():
            expert = self.rank * self.case.num_local + local
            tokens = oracle.tokens_for(self.case.topk[source], expert)
            if len(tokens):
                y[local, block] = make(self.case.output(expert, source)[tokens])
        return y

    def new_outputs(self) -> torch.Tensor:
        case = self.case
        shape = (case.num_local, case.num_ranks * case.num_max, case.hidden)
        dtype = torch.float32 if case.fp32_outputs else torch.bfloat16
        return self.write_outputs(torch.empty(shape, dtype=dtype))

    def orders(self) -> tuple[tuple[int, ...], ...]:
        """For each expert, the sources in the order of their blocks."""
        result = []
        for local in range(self.case.num_local):
            sources = [s for s in range(self.case.num_ranks) if self.blocks[local, s].stop]
            sources = [
                s for s in sources if self.blocks[local, s].start < self.blocks[local, s].stop
            ]
            result.append(tuple(sorted(sources, key=lambda s: self.blocks[local, s].start)))
        return tuple(result)


def dispatch(buffer: moewire.Buffer, case: Case, rank: int, **options: Any) -> Received:
    """Dispatches this rank's share; unless it has a hook or event, also checks."""
    options.setdefault("use_fp8", case.fp8)
    options.setdefault("round_scale", case.round_scale)
    options.setdefault("use_ue8m0", case.ue8m0)
    options.setdefault("fp32_outputs", case.fp32_outputs)
    options.setdefault("timeout_us", TIMEOUT_US)
    timeout_us = options.pop("timeout_us")
    weights = None
    if case.asks(rank):
        weights = torch.from_numpy(case.weights[rank].copy())
        options |= {"topk_weights": weights, "pre_reduce": True}
    x, topk = bf16(case.x[rank]), torch.from_numpy(case.topk[rank].copy())
    result = buffer.dispatch(x, topk, None, case.num_max, case.num_experts, timeout_us, **options)
    x.view(torch.int16).fill_(-1)  # the caller may overwrite its input
    topk.fill_(-1)
    if weights is not None:
        weights.fill_(float("nan"))
    received = Received(case, rank, result)
    if not options.get("async_finish") and not options.get("return_recv_hook"):
        received.check()
    return received


def combine(
    buffer: moewire.Buffer,
    received: Received,
    *,
    drop: np.ndarray | None = None,
    zero_copy: bool = False,
    own_out: bool = False,
    timeout_us: int | None = None,
    **options: Any,
) -> np.ndarray:
    """Combines, checks every bit, and gives the bits."""
    case, rank = received.case, received.rank
    topk, weights = case.topk[rank].copy(), case.weights[rank]
    if drop is not None:
        topk[drop] = -1
    if zero_copy:
        y = received.write_outputs(buffer.get_next_combine_buffer(received.handle))
    else:
        y = received.new_outputs()
    out = torch.full((len(topk), case.hidden), 7.0, dtype=torch.bfloat16) if own_out else None
    got, event, hook = buffer.combine(
        y,
        torch.from_numpy(topk),
        torch.from_numpy(weights.copy()),
        None,
        TIMEOUT_US if timeout_us is None else timeout_us,
        received.handle,
        zero_copy=zero_copy,
        out=out,
        **options,
    )
    if not zero_copy:
        y.view(torch.int16).fill_(-1)  # the caller may overwrite its input
    if hook is not None:
        hook()
    if event.event is not None:
        event.current_stream_wait()
    assert out is None or got is out
    same(bits(got), case.combined(rank, topk, weights), f"{case}: combine on rank {rank}")
    return bits(got)
