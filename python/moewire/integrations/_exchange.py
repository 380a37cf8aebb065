"""One MoE layer's tokens to the ranks of their experts and back, in rounds."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch
import torch.distributed as dist

from ..buffer import Buffer

if TYPE_CHECKING:
    from ..handle import Handle

# Runs this rank's experts: rows [n, H], local expert ids int64 [n, 1], n >= 1 -> [n, H].
Experts: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Key(NamedTuple):
    """What the layers that share one Buffer have in common."""

    group: dist.ProcessGroup
    hidden: int
    num_experts: int
    dtype: torch.dtype
    max_tokens: int
    # For flat operations: selections per token, then bytes per token of each extra tensor.
    flat: tuple[int, ...] | None = None


_buffers: dict[Key, Buffer] = {}


def buffer_for(key: Key) -> Buffer:
    """The process's one Buffer for ``key``; collective over the group when it is new."""
    found = _buffers.get(key)
    if found is None:
        ranks = dist.get_world_size(key.group)
        found = _buffers[key] = Buffer(key.group, _num_bytes(key, ranks))
    return found


def _num_bytes(key: Key, ranks: int) -> int:
    if key.flat is None:
        return Buffer.get_ep_buffer_size_hint(key.max_tokens, key.hidden, ranks, key.num_experts)
    num_topk, *extra = key.flat
    return Buffer.get_flat_buffer_size_hint(
        key.max_tokens, key.hidden, ranks, num_topk, extra_row_bytes=extra
    )


def open_buffers() -> list[Buffer]:
    """Every Buffer made here, in the order of making."""
    return list(_buffers.values())


def close_buffers() -> None:
    """Closes every Buffer made here; a later forward makes new ones."""
    while _buffers:
        _buffers.popitem()[1].close()


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

    def count(self, received: list[int]) -> None:
        """Adds the rows of one round, by local expert."""
        self.rounds += 1
        self.rows += sum(received)
        for expert, rows in enumerate(received):
            self.rows_per_expert[expert] += rows


class Tokens(NamedTuple):
    """Tokens of this rank: [T, H], expert ids [T, K], weights [T, K], and their results."""

    x: torch.Tensor  # bf16
    topk_idx: torch.Tensor  # int64
    topk_weights: torch.Tensor  # float32
    out: torch.Tensor  # bf16

    def rows(self, begin: int, end: int) -> Tokens:
        """Some of them."""
        return Tokens(*(tensor[begin:end] for tensor in self))


def exchange(key: Key, tokens: Tokens, experts: Experts, stats: Stats, timeout_us: int) -> None:
    """Fills ``tokens.out``. Collective: as many rounds as the rank with most tokens needs."""
    buffer = buffer_for(key)
    num_tokens = tokens.x.shape[0]
    stats.calls += 1
    stats.tokens += num_tokens
    begin, more = 0, True
    while more:
        end = min(begin + key.max_tokens, num_tokens)
        part = tokens.rows(begin, end)
        more = _round(buffer, key, part, end < num_tokens, experts, stats, timeout_us)
        begin = end


def _round(
    buffer: Buffer,
    key: Key,
    part: Tokens,
    own_more: bool,
    experts: Experts,
    stats: Stats,
    timeout_us: int,
) -> bool:
    """At most ``max_tokens`` tokens of each rank; says whether any rank has more."""
    begin = perf_counter()
    recv_x, recv_count, handle, _, _ = buffer.dispatch(
        part.x,
        part.topk_idx,
        None,
        key.max_tokens,
        key.num_experts,
        timeout_us,
        use_fp8=False,
        more=own_more,
    )
    assert isinstance(recv_x, torch.Tensor)  # a pair only with fp8
    with handle:
        counts = recv_count.tolist()
        stats.count(counts)
        more = own_more or handle.peers_have_more
        rows, ids = _gather(recv_x, counts)
        dispatched = perf_counter()
        results = experts(rows, ids) if rows.shape[0] else rows
        computed = perf_counter()
        _combine(buffer, handle, part, results, counts, timeout_us)
    stats.seconds_dispatch += dispatched - begin
    stats.seconds_experts += computed - dispatched
    stats.seconds_combine += perf_counter() - computed
    return more


def _gather(recv_x: torch.Tensor, counts: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """The valid rows, one after another, and the local expert of each."""
    blocks = [recv_x[expert, :rows] for expert, rows in enumerate(counts) if rows]
    ids = [expert for expert, rows in enumerate(counts) for _ in range(rows)]
    rows = torch.cat(blocks) if blocks else recv_x.new_empty((0, recv_x.shape[2]))
    return rows, torch.tensor(ids, dtype=torch.int64).unsqueeze(1)


def _combine(
    buffer: Buffer,
    handle: Handle,
    part: Tokens,
    results: torch.Tensor,
    counts: list[int],
    timeout_us: int,
) -> None:
    y = buffer.get_next_combine_buffer(handle, timeout_us=timeout_us)
    begin = 0
    for expert, rows in enumerate(counts):
        if rows:
            y[expert, :rows] = results[begin : begin + rows]
            begin += rows
    buffer.combine(
        y, part.topk_idx, part.topk_weights, None, timeout_us, handle, zero_copy=True, out=part.out
    )
