"""Flat operations of a case, and what they must give, written naively."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import moewire

from . import oracle
from .cases import Case
from .verify import _float32, bf16, bits, same

# What goes along: dtype, and the shape of one token's part.
EXTRAS = (
    (),
    ((torch.float32, (3,)),),
    ((torch.int32, ()), (torch.uint8, (2, 5)), (torch.int64, (1,)), (torch.float16, (7,))),
)


@dataclass
class Row:
    """One row that a rank receives."""

    source: int
    token: int
    ids: list[int]
    weights: list[float]


def rows_for(case: Case, rank: int) -> list[Row]:
    """The rows of one rank, by source and token: the definition."""
    rows = []
    for source in range(case.num_ranks):
        for token, chosen in enumerate(case.topk[source].tolist()):
            here = [expert >= 0 and expert // case.num_local == rank for expert in chosen]
            if any(here):
                ids = [
                    expert % case.num_local if own else -1
                    for expert, own in zip(chosen, here, strict=True)
                ]
                weights = case.weights[source][token].tolist()
                own_weights = [w if own else 0.0 for w, own in zip(weights, here, strict=True)]
                rows.append(Row(source, token, ids, own_weights))
    return rows


def answer(case: Case, rank: int, source: int) -> np.ndarray:
    """What a rank makes of each token of a source, by no rule: bf16 or float32 [T, H]."""
    return case.output(1_000_000 + rank, source)


def combined(case: Case, source: int, lost: frozenset[int] = frozenset()) -> np.ndarray:
    """bf16 [T, H]: the answers of a token's ranks, added in order of rank."""
    total = np.zeros((len(case.topk[source]), case.hidden), dtype=np.float32)
    answers = [answer(case, rank, source) for rank in range(case.num_ranks)]
    with np.errstate(all="ignore"):
        for token, chosen in enumerate(case.topk[source].tolist()):
            owners = {expert // case.num_local for expert in chosen if expert >= 0}
            for rank in sorted(owners - lost):
                row = answers[rank][token]
                total[token] += row if row.dtype == np.float32 else oracle.to_float(row)
        return oracle.to_bf16(total)


def extras_of(case: Case, source: int, kind: int) -> list[torch.Tensor]:
    """What one rank's tokens bring along."""
    made = []
    for at, (dtype, shape) in enumerate(EXTRAS[kind]):
        size = (len(case.x[source]), *shape)
        numbers = case.random(31, source, at).integers(0, 100, size=size)
        made.append(torch.from_numpy(numbers).to(dtype))
    return made


class Received:
    """One rank's flat dispatch."""

    def __init__(self, case: Case, rank: int, kind: int, got: Any, unrouted: bool = False) -> None:
        self.case, self.rank, self.kind, self.got, self.unrouted = case, rank, kind, got, unrouted
        self.rows = rows_for(case, rank)

    def finish(self) -> None:
        if self.got.hook is not None:
            self.got.hook()
        if self.got.event.event is not None:
            self.got.event.current_stream_wait()

    def check(self) -> None:
        got, rows = self.got, self.rows
        assert got.num_recv_tokens == len(rows) == got.handle.num_recv_tokens, f"{self.case}"
        want = np.array([row.token for row in rows], dtype=np.int32)
        same(got.src_info.numpy(), want, f"{self.case}: src_info")
        self._check_ranges()
        self._check_rows()
        self._check_columns()

    def _check_ranges(self) -> None:
        begin = 0
        for source, word in enumerate(self.got.handle.layout_range.tolist()):
            count = sum(row.source == source for row in self.rows)
            assert word & 0xFFFFFFFF == count, f"{self.case}: rows of {source}"
            assert count == 0 or word >> 32 == begin, f"{self.case}: rows of {source}"
            begin += count

    def _gather(self, by_source: list[np.ndarray], tail: tuple[int, ...]) -> np.ndarray:
        if not self.rows:
            return np.empty((0, *tail), dtype=by_source[0].dtype)
        return np.stack([by_source[row.source][row.token] for row in self.rows])

    def _check_rows(self) -> None:
        case = self.case
        want = self._gather(case.x, (case.hidden,))
        if not case.fp8:
            assert self.got.recv_x.is_contiguous()
            same(bits(self.got.recv_x), want, f"{case}: rows")
            return
        data, scales = oracle.cast(want, case.round_scale)
        same(bits(self.got.recv_x[0]), data, f"{case}: rows")
        got = self.got.recv_x[1].contiguous().numpy()
        if case.ue8m0:
            same(got, oracle.exponent_words(scales), f"{case}: scales")
            return
        nan = np.isnan(scales)
        assert np.array_equal(np.isnan(got), nan), f"{case}: scales"
        same(np.where(nan, 0, got), np.where(nan, np.float32(0), scales), f"{case}: scales")

    def _check_columns(self) -> None:
        case, got = self.case, self.got
        if self.unrouted:
            assert got.recv_topk_idx is None and got.recv_topk_weights is None
        else:
            shape = (len(self.rows), case.num_topk)
            ids = np.array([row.ids for row in self.rows], dtype=np.int64).reshape(shape)
            weights = np.array([row.weights for row in self.rows], dtype=np.float32)
            same(got.recv_topk_idx.numpy(), ids, f"{case}: ids")
            same(got.recv_topk_weights.numpy(), weights.reshape(shape), f"{case}: weights")
        sent = [extras_of(case, source, self.kind) for source in range(case.num_ranks)]
        assert len(got.recv_extra) == len(EXTRAS[self.kind])
        for at, tensor in enumerate(got.recv_extra):
            by_source = [one[at].numpy() for one in sent]
            want = self._gather(by_source, EXTRAS[self.kind][at][1])
            assert tensor.dtype is sent[0][at].dtype
            same(tensor.numpy().astype(np.float64), want.astype(np.float64), f"{case}: extra {at}")

    def outputs(self, y: torch.Tensor | None = None) -> torch.Tensor:
        """[N, H]: this rank's answers, into y or a new tensor."""
        case = self.case
        answers = [answer(case, self.rank, source) for source in range(case.num_ranks)]
        want = self._gather(answers, (case.hidden,))
        made = (_float32 if case.fp32_outputs else bf16)(want)
        return made if y is None else y.copy_(made)


def dispatch(
    buffer: moewire.Buffer, case: Case, rank: int, kind: int = 0, **options: Any
) -> Received:
    """Dispatches this rank's share; unless it has a hook or event, also checks."""
    for name in ("round_scale", "fp32_outputs"):
        options.setdefault(name, getattr(case, name))
    options.setdefault("use_fp8", case.fp8)
    options.setdefault("use_ue8m0", case.ue8m0)
    options.setdefault("timeout_us", 30_000_000)
    x, extra = bf16(case.x[rank]), extras_of(case, rank, kind)
    unrouted = "handle" in options
    topk = None if unrouted else torch.from_numpy(case.topk[rank].copy())
    weights = None if unrouted else torch.from_numpy(case.weights[rank].copy())
    got = buffer.dispatch_flat(
        x, topk, weights, case.num_max, case.num_experts, extra=extra, **options
    )
    x.view(torch.int16).fill_(-1)  # the caller may overwrite its input
    for tensor in (*extra, *(() if topk is None or weights is None else (topk, weights))):
        tensor.zero_()
    received = Received(case, rank, kind, got, unrouted)
    if not options.get("async_finish") and not options.get("return_recv_hook"):
        received.check()
    return received


def combine(
    buffer: moewire.Buffer,
    received: Received,
    *,
    zero_copy: bool = False,
    own_out: bool = False,
    timeout_us: int = 30_000_000,
    **options: Any,
) -> np.ndarray:
    """Combines, checks every bit, and gives the bits."""
    case, rank, handle = received.case, received.rank, received.got.handle
    y = received.outputs(buffer.get_next_combine_buffer(handle) if zero_copy else None)
    out = None
    if own_out:
        out = torch.full((len(case.x[rank]), case.hidden), 7.0, dtype=torch.bfloat16)
    got, event, hook = buffer.combine_flat(
        y, handle, timeout_us=timeout_us, zero_copy=zero_copy, out=out, **options
    )
    if not zero_copy:
        y.fill_(float("nan"))  # the caller may overwrite its input
    if hook is not None:
        hook()
    if event.event is not None:
        event.current_stream_wait()
    assert out is None or got is out
    same(bits(got), combined(case, rank), f"{case}: flat combine on rank {rank}")
    return bits(got)
