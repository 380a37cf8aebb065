"""Routings against plain loops over the inputs of all ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import moewire

BF16, FLOAT32 = torch.bfloat16, torch.float32
TIMEOUT_US = 30_000_000


@dataclass
class Case:
    """What all ranks give to one routing. Every rank makes the same."""

    ids: list[torch.Tensor]  # int64 [T, K] of each rank
    num_experts: int
    hidden: int
    seed: int
    in_rank: list[torch.Tensor] | None = None  # bool [T, R]
    cache: dict[Any, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.listed: list[list[list[int]]] = [one.tolist() for one in self.ids]

    @property
    def num_ranks(self) -> int:
        return len(self.ids)

    @property
    def num_local(self) -> int:
        return self.num_experts // self.num_ranks

    def owner(self, expert: int) -> int:
        return expert // self.num_local if expert >= 0 else -1

    def ranks_of(self, source: int, token: int) -> list[int]:
        """The ranks that a token goes to, ascending."""
        if self.in_rank is not None:
            return [int(rank) for rank in self.in_rank[source][token].nonzero()]
        return sorted({self.owner(one) for one in self.listed[source][token]} - {-1})

    def rows_at(self, rank: int) -> list[tuple[int, int]]:
        """Source and token of each row."""
        return [
            (source, token)
            for source in range(self.num_ranks)
            for token in range(len(self.ids[source]))
            if rank in self.ranks_of(source, token)
        ]

    def local_ids(self, rank: int, source: int, token: int) -> list[int]:
        ids = self.listed[source][token]
        return [one - rank * self.num_local if self.owner(one) == rank else -1 for one in ids]

    def expanded(self, rank: int, alignment: int) -> tuple[dict[tuple[int, int], int], int]:
        """The place of (row, k), and how many places there are."""
        places: dict[tuple[int, int], int] = {}
        at, rows = 0, self.rows_at(rank)
        for expert in range(self.num_local):
            for row, (source, token) in enumerate(rows):
                for k, one in enumerate(self.local_ids(rank, source, token)):
                    if one == expert:
                        places[row, k] = at
                        at += 1
            at = -(-at // alignment) * alignment
        return places, at

    def counted(self, rank: int) -> torch.Tensor:
        """What a rank says of its selections where it gives no ids."""
        return torch.arange(self.num_experts, dtype=torch.int32) * (rank + 1)

    def values(self, name: str, number: int, *shape: int) -> torch.Tensor:
        """Numbers of a rank that every rank knows: float32."""
        key = (name, number, shape)
        if key not in self.cache:
            salt = sum(name.encode()) * 1000 + number
            made = np.random.default_rng([self.seed, salt]).standard_normal(shape)
            self.cache[key] = torch.from_numpy(made.astype(np.float32))
        return self.cache[key]

    def x(self, source: int) -> torch.Tensor:
        return self.values("x", source, len(self.ids[source]), self.hidden).to(BF16)

    def weights(self, source: int) -> torch.Tensor:
        return self.values("weights", source, *self.ids[source].shape)

    def scales(self, source: int) -> torch.Tensor:
        return self.values("scales", source, len(self.ids[source]), 3)

    def output(self, rank: int, source: int, token: int, dtype: torch.dtype) -> torch.Tensor:
        """What a rank gives back for a row."""
        whole = self.values("outputs", rank * 64 + source, len(self.ids[source]), self.hidden)
        return whole[token].to(dtype)


def make(random: np.random.Generator, num_ranks: int, most_tokens: int, hidden: int = 0) -> Case:
    """A random case: ranks without tokens, tokens without ranks, experts twice in a token."""
    topk, local = int(random.integers(1, 9)), int(random.integers(1, 5))
    experts = local * num_ranks
    ids = []
    for _ in range(num_ranks):
        tokens = int(random.integers(most_tokens + 1)) * int(random.integers(4) > 0)
        one = torch.from_numpy(random.integers(-1, experts, (tokens, topk)))
        ids.append(one)
    match int(random.integers(4)):
        case 0:
            for one in ids:
                one.fill_(-1)
        case 1:  # all to one rank: the others have no rows
            for one in ids:
                one.remainder_(local).add_(local * (num_ranks - 1))
    hidden = hidden or 8 * int(random.integers(1, 17))
    case = Case(ids, experts, hidden, int(random.integers(1 << 31)))
    if random.integers(4) == 0:  # tokens also go to ranks of which they select no expert
        case.in_rank = [torch.from_numpy(random.random((len(one), num_ranks)) < 0.3) for one in ids]
        for source, mask in enumerate(case.in_rank):
            for token in range(len(mask)):
                for rank in {case.owner(int(e)) for e in ids[source][token]} - {-1}:
                    mask[token, rank] = True
    return case


def without_ids(random: np.random.Generator, num_ranks: int) -> Case:
    """Tokens that say ranks only."""
    tokens = [int(random.integers(20)) for _ in range(num_ranks)]
    ids = [torch.empty((count, 0), dtype=torch.int64) for count in tokens]
    in_rank = [torch.from_numpy(random.random((count, num_ranks)) < 0.5) for count in tokens]
    return Case(ids, 2 * num_ranks, 64, int(random.integers(1 << 31)), in_rank)


def stack(rows: list[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    return torch.stack(rows) if rows else like.new_empty((0, *like.shape[1:]))


def same(got: torch.Tensor | None, want: torch.Tensor, what: str) -> None:
    assert got is not None and got.dtype is want.dtype, f"{what}: {got} is not {want.dtype}"
    assert got.shape == want.shape, f"{what}: {list(got.shape)}, not {list(want.shape)}"
    assert torch.equal(got, want), f"{what} differs"


class Made:
    """One routing of this rank, with what it must be."""

    def __init__(self, buffer: moewire.Buffer, case: Case, rank: int, narrow: bool = False) -> None:
        self.buffer, self.case, self.rank = buffer, case, rank
        ids = case.ids[rank].to(torch.int32) if narrow else case.ids[rank].clone()
        self.routing = buffer.make_routing(
            ids if ids.shape[1] else None,
            case.num_experts,
            is_token_in_rank=None if case.in_rank is None else case.in_rank[rank],
            num_tokens_per_expert=case.counted(rank) if not ids.shape[1] else None,
            timeout_us=TIMEOUT_US,
        )
        ids.fill_(-7)  # the caller may overwrite it
        self.rows = case.rows_at(rank)
        self.check()

    def check(self) -> None:
        case, got, rank = self.case, self.routing, self.rank
        assert got.num_tokens == len(case.ids[rank]) and got.num_rows == len(self.rows)
        assert got.num_topk == case.ids[rank].shape[1] and got.num_experts == case.num_experts
        assert got.num_local_experts == case.num_local and got.nbytes > 0
        ids = [case.local_ids(rank, *row) for row in self.rows]
        flat = [one for row in ids for one in row]
        counts = [flat.count(expert) for expert in range(case.num_local)]
        if got.num_topk == 0:
            counts = sum(case.counted(r) for r in range(case.num_ranks)).tolist()
            counts = counts[rank * case.num_local :][: case.num_local]
        assert got.counts == counts, (got.counts, counts)
        sources = [source for source, _ in self.rows]
        first = [sum(one < source for one in sources) for source in range(case.num_ranks)]
        assert got.rows_from == [*first, len(self.rows)]
        sent = [case.ranks_of(rank, token) for token in range(got.num_tokens)]
        ranks = range(case.num_ranks)
        assert got.tokens_for == [sum(to in one for one in sent) for to in ranks]
        want = torch.tensor(ids, dtype=torch.int64).reshape(got.num_rows, got.num_topk)
        same(got.recv_topk_idx(), want, "recv_topk_idx")
        tokens = torch.tensor([token for _, token in self.rows], dtype=torch.int32)
        same(got.source_tokens(), tokens, "source_tokens")
        for alignment in (1, 4) if got.num_topk else ():
            places, total = case.expanded(rank, alignment)
            at = torch.full((got.num_rows, got.num_topk), -1, dtype=torch.int32)
            for place, row in places.items():
                at[place] = row
            same(got.expanded_rows(alignment), at, "expanded_rows")
            assert got.num_expanded_rows(alignment) == total

    def scatter(self, *, own_out: bool = False, rows_alone: bool = False) -> None:
        case = self.case
        x, weights, scales = (f(self.rank) for f in (case.x, case.weights, case.scales))
        out = torch.full((len(self.rows) + 2, case.hidden), 7.0, dtype=BF16) if own_out else None
        more = {} if rows_alone else {"topk_weights": weights, "extra": scales}
        got = self.buffer.scatter(self.routing, x, out=out, timeout_us=TIMEOUT_US, **more)
        same(got.rows, stack([case.x(s)[t] for s, t in self.rows], x), "rows")
        if out is not None:
            assert got.rows.data_ptr() == out.data_ptr() or not self.rows
            assert (out[len(self.rows) :] == 7).all()
        if rows_alone:
            assert got.weights is None and got.extra is None
            return
        same(got.extra, stack([case.scales(s)[t] for s, t in self.rows], scales), "extra")
        here = torch.tensor([case.local_ids(self.rank, *row) for row in self.rows])
        want = stack([case.weights(s)[t] for s, t in self.rows], weights)
        here = here.reshape(want.shape)
        same(got.weights, torch.where(here >= 0, want, torch.zeros(())), "weights")

    def scatter_expanded(self, alignment: int, zero_gaps: bool) -> None:
        case = self.case
        places, total = case.expanded(self.rank, alignment)
        out = torch.full((total, case.hidden), 7.0, dtype=BF16)
        got = self.buffer.scatter(
            self.routing,
            case.x(self.rank),
            topk_weights=case.weights(self.rank),
            out=out,
            expanded=True,
            expert_alignment=alignment,
            zero_gaps=zero_gaps,
            timeout_us=TIMEOUT_US,
        )
        want = torch.full_like(out, 0.0 if zero_gaps else 7.0)
        weights = torch.zeros(total)
        for (row, k), at in places.items():
            source, token = self.rows[row]
            want[at], weights[at] = case.x(source)[token], case.weights(source)[token, k]
        assert got.rows is out
        same(out, want, "expanded rows")
        assert got.weights is not None
        if zero_gaps:
            same(got.weights, weights, "expanded weights")
        for at in places.values():
            assert got.weights[at] == weights[at]

    def gather(
        self,
        num_biases: int = 0,
        dtype: torch.dtype = BF16,
        out: Any = None,
        *,
        rows_alone: bool = False,
    ) -> None:
        case, rank = self.case, self.rank
        shape = (len(case.ids[rank]), case.hidden)
        y = stack(
            [case.output(rank, *row, dtype) for row in self.rows], torch.empty(shape, dtype=dtype)
        )
        biases = [case.values("bias", rank + 8 * at, *shape).to(dtype) for at in range(num_biases)]
        weights = torch.full((len(self.rows), self.routing.num_topk), float(rank + 1))
        given = None if rows_alone else weights
        to = None if out is None else torch.full(shape, 7.0, dtype=out)
        got, home = self.buffer.gather(
            self.routing,
            y,
            topk_weights=given,
            owners_only=bool(num_biases),
            bias=biases,
            out=to,
            timeout_us=TIMEOUT_US,
        )
        assert to is None or got is to
        sums, sent = torch.zeros(shape), torch.zeros(shape[0], self.routing.num_topk)
        for token in range(shape[0]):
            for bias in biases:
                sums[token] += bias[token].float()
            for to_rank in case.ranks_of(rank, token):
                sums[token] += case.output(to_rank, rank, token, dtype).float()
                ids = case.local_ids(to_rank, rank, token)
                for k, one in enumerate(ids):
                    sent[token, k] += to_rank + 1 if one >= 0 or not num_biases else 0
        same(got, sums.to(out or BF16), "sums")
        if rows_alone:
            assert home is None
        else:
            same(home, sent, "weights that came home")

    def gather_expanded(self, alignment: int) -> None:
        case, rank = self.case, self.rank
        shape, topk = (len(case.ids[rank]), case.hidden), self.routing.num_topk
        places, total = case.expanded(rank, alignment)
        y = torch.full((total, case.hidden), float("nan"), dtype=BF16)
        weights = torch.full((total,), float("nan"))
        for (row, k), at in places.items():
            y[at] = case.output(rank, *self.rows[row], BF16) * (k + 1)
            weights[at] = rank + 1 + k
        got, home = self.buffer.gather(
            self.routing,
            y,
            topk_weights=weights,
            expanded=True,
            expert_alignment=alignment,
            timeout_us=TIMEOUT_US,
        )
        sums, sent = torch.zeros(shape), torch.zeros(shape[0], topk)
        for token in range(shape[0]):
            for to_rank in case.ranks_of(rank, token):
                part = torch.zeros(case.hidden)
                for k, one in enumerate(case.local_ids(to_rank, rank, token)):
                    if one >= 0:
                        part += (case.output(to_rank, rank, token, BF16) * (k + 1)).float()
                        sent[token, k] = to_rank + 1 + k
                sums[token] += part.to(BF16).float()
        same(got, sums.to(BF16), "expanded sums")
        same(home, sent, "expanded weights that came home")
