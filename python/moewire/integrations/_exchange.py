"""Sends one MoE layer's tokens to the ranks of their experts and back, in rounds."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch

from .. import autograd
from .._base.opaque import opaque
from ..autograd._backward import refuse_capture
from ._buffers import Key, buffer_for

if TYPE_CHECKING:
    from ..buffer import Buffer
    from ..handle import Handle

# Runs this rank's experts: rows [n, H], local expert ids int64 [n, 1], n >= 1 -> [n, H].
Experts: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Stats:
    """What one layer did on this rank, summed over its calls."""

    def __init__(self, num_local_experts: int) -> None:
        self.calls = 0
        self.rounds = 0
        self.tokens = 0  # of this rank
        self.rows = 0  # that this rank's experts computed, for tokens of all ranks
        self.rows_per_expert = [0] * num_local_experts
        self.seconds_dispatch = 0.0  # with gathering the received rows
        self.seconds_experts = 0.0
        self.seconds_combine = 0.0  # with placing the experts' results

    @property
    def seconds_exchange(self) -> float:
        """Everything but the experts."""
        return self.seconds_dispatch + self.seconds_combine

    def time(self, begin: float, dispatched: float, computed: float) -> None:
        """Adds what one round took until now; the arguments are times of ``perf_counter``."""
        self.seconds_dispatch += dispatched - begin
        self.seconds_experts += computed - dispatched
        self.seconds_combine += perf_counter() - computed

    def count(self, received: list[int]) -> None:
        """Adds the rows of one round, by local expert."""
        self.rounds += 1
        self.rows += sum(received)
        for expert, rows in enumerate(received):
            self.rows_per_expert[expert] += rows


class Tokens(NamedTuple):
    """Tokens of this rank: [T, H], expert ids [T, K], weights [T, K]."""

    x: torch.Tensor  # bf16
    topk_idx: torch.Tensor  # int64
    topk_weights: torch.Tensor  # float32

    def rows(self, begin: int, end: int) -> Tokens:
        """Some of them."""
        return Tokens(*(tensor[begin:end] for tensor in self))


class Layer(NamedTuple):
    """What the rounds of one layer's call have in common."""

    key: Key
    experts: Experts
    stats: Stats
    timeout_us: int


@opaque
def exchange(layer: Layer, tokens: Tokens) -> torch.Tensor:
    """The weighted sums of the experts' outputs, bf16 [T, H].

    Collective: as many rounds as the rank with most tokens needs. Gradients flow through it if
    torch's grad mode is on, which must be on for every rank or for none.
    """
    buffer, stats = buffer_for(layer.key), layer.stats
    refuse_capture(buffer)  # before anything is sent
    round_ = _round_with_gradients if torch.is_grad_enabled() else _round
    num_tokens = tokens.x.shape[0]
    stats.calls += 1
    stats.tokens += num_tokens
    begin, more, parts = 0, True, []
    while more:
        end = min(begin + layer.key.max_tokens, num_tokens)
        out, more = round_(buffer, layer, tokens.rows(begin, end), end < num_tokens)
        parts.append(out)
        begin = end
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _round_with_gradients(
    buffer: Buffer, layer: Layer, part: Tokens, own_more: bool
) -> tuple[torch.Tensor, bool]:
    begin = perf_counter()
    key, stats = layer.key, layer.stats
    rows, routing = autograd.dispatch(
        buffer,
        *part,
        None,
        key.max_tokens,
        key.num_experts,
        layer.timeout_us,
        more=own_more,
    )
    stats.count(routing.counts)
    dispatched = perf_counter()
    if rows.shape[0]:
        results = layer.experts(rows, _ids(routing.counts, rows.device))
    else:
        # One row of zeros that is then left out: so hooks that wait for the experts' backward, such
        # as FSDP's, run on this rank, too.
        nothing = rows.sum(0, keepdim=True)
        first = torch.zeros((1, 1), dtype=torch.int64, device=rows.device)
        results = layer.experts(nothing, first)[:0]
    computed = perf_counter()
    out = autograd.combine(results.contiguous(), routing)
    stats.time(begin, dispatched, computed)
    return out, routing.peers_have_more


def _round(buffer: Buffer, layer: Layer, part: Tokens, own_more: bool) -> tuple[torch.Tensor, bool]:
    """At most ``max_tokens`` tokens of each rank; says whether any rank has more."""
    begin = perf_counter()
    key, stats = layer.key, layer.stats
    recv_x, recv_count, handle, _, _ = buffer.dispatch(
        part.x,
        part.topk_idx,
        None,
        key.max_tokens,
        key.num_experts,
        layer.timeout_us,
        use_fp8=False,
        more=own_more,
    )
    assert isinstance(recv_x, torch.Tensor)  # a pair only with fp8
    with handle:
        counts = recv_count.tolist()
        stats.count(counts)
        more = handle.peers_have_more  # of all ranks, this one too
        rows = _gather(recv_x, counts)
        dispatched = perf_counter()
        ids = _ids(counts, rows.device)
        results = layer.experts(rows, ids) if rows.shape[0] else rows
        computed = perf_counter()
        out = _combine(buffer, handle, part, results, counts, layer.timeout_us)
    stats.time(begin, dispatched, computed)
    return out, more


def _gather(recv_x: torch.Tensor, counts: list[int]) -> torch.Tensor:
    """The rows, one local expert after another: [n, H]."""
    blocks = [recv_x[expert, :rows] for expert, rows in enumerate(counts) if rows]
    return torch.cat(blocks) if blocks else recv_x.new_empty((0, recv_x.shape[2]))


def _ids(counts: list[int], device: torch.device) -> torch.Tensor:
    """The local expert of each row, int64 [n, 1]."""
    rows = torch.tensor(counts, dtype=torch.int64, device="cpu")
    return torch.repeat_interleave(rows).unsqueeze(1).to(device)


def _combine(
    buffer: Buffer,
    handle: Handle,
    part: Tokens,
    results: torch.Tensor,
    counts: list[int],
    timeout_us: int,
) -> torch.Tensor:
    y = buffer.get_next_combine_buffer(handle, timeout_us=timeout_us)
    begin = 0
    for expert, rows in enumerate(counts):
        if rows:
            y[expert, :rows] = results[begin : begin + rows]
            begin += rows
    out, _, _ = buffer.combine(
        y, part.topk_idx, part.topk_weights, None, timeout_us, handle, zero_copy=True
    )
    return out
