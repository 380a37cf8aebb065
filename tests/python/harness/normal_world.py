"""Inputs of DeepEP's normal mode on all ranks, and what each must get: token by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from .member import Rank

HIDDEN, TOPK, LOCAL_EXPERTS = 64, 4, 3
SCALES = 5  # not H/128: it is tied to nothing


class Row(NamedTuple):
    """One row that a rank receives."""

    source: int
    token: int


class World(NamedTuple):
    """What all ranks send, by rank. Every rank makes all of it from the seed."""

    topk_idx: list[torch.Tensor]  # int64 [T, K]
    topk_weights: list[torch.Tensor]  # float32 [T, K]
    x: list[torch.Tensor]  # bf16 [T, H]

    @property
    def num_ranks(self) -> int:
        return len(self.x)

    @property
    def num_experts(self) -> int:
        return LOCAL_EXPERTS * self.num_ranks

    def goes(self, source: int, token: int, rank: int) -> bool:
        ids: list[int] = self.topk_idx[source][token].tolist()
        return any(one >= 0 and one // LOCAL_EXPERTS == rank for one in ids)

    def rows_of(self, rank: int) -> list[Row]:
        """In their order."""
        return [
            Row(source, token)
            for source, x in enumerate(self.x)
            for token in range(len(x))
            if self.goes(source, token, rank)
        ]

    def received(self, rank: int, sent: Sequence[torch.Tensor]) -> torch.Tensor:
        """The rows of a tensor that each rank sends, [T, ...] by rank."""
        rows = [sent[row.source][row.token] for row in self.rows_of(rank)]
        return torch.stack(rows) if rows else sent[0][:0]

    def selections(self, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and weights of a rank's rows: local ids, -1 and 0 where they are another rank's."""
        ids, weights = self.received(rank, self.topk_idx), self.received(rank, self.topk_weights)
        local = ids - rank * LOCAL_EXPERTS
        here = (ids >= 0) & (local >= 0) & (local < LOCAL_EXPERTS)
        return torch.where(here, local, -1), torch.where(here, weights, 0.0)

    def counts(self, rank: int, alignment: int = 1) -> list[int]:
        """Selections of each local expert, rounded up."""
        found = []
        for expert in range(rank * LOCAL_EXPERTS, (rank + 1) * LOCAL_EXPERTS):
            count = sum(ids.view(-1).tolist().count(expert) for ids in self.topk_idx)
            found.append((count + alignment - 1) // alignment * alignment)
        return found

    def combined(
        self,
        source: int,
        answers: Sequence[torch.Tensor],
        bias: Sequence[torch.Tensor] = (),
    ) -> torch.Tensor:
        """What comes back: ``answers`` has each rank's rows. Added in float32, in order of rank."""
        total = torch.zeros(len(self.x[source]), answers[0].shape[1], dtype=torch.float32)
        for one in bias:
            total += one.float()
        for rank, rows in enumerate(answers):
            for at, row in enumerate(self.rows_of(rank)):
                if row.source == source:
                    total[row.token] += rows[at].float()
        return total.to(answers[0].dtype)


def world_of(
    rank: Rank,
    salt: int = 0,
    tokens: Sequence[int] | None = None,
    hidden: int = HIDDEN,
    nothing: bool = False,
) -> World:
    """``tokens``: of each rank; else drawn, other numbers on each, none on one of several.

    ``nothing``: no token goes anywhere.
    """
    generator = torch.Generator().manual_seed(rank.seed + 7919 * salt)
    experts = LOCAL_EXPERTS * rank.size
    if tokens is None:
        drawn = torch.randint(5, 40, (rank.size,), generator=generator).tolist()
        tokens = [0 if r == 1 + salt % 3 else int(n) for r, n in enumerate(drawn)]
    # -1 now and then, an expert twice in a token, and tokens that go nowhere
    ids = [torch.randint(-1, experts, (n, TOPK), generator=generator) for n in tokens]
    for one in ids:
        one[:: 1 if nothing else 8] = -1
    return World(
        ids,
        [torch.rand((n, TOPK), generator=generator) for n in tokens],
        [torch.randn((n, hidden), generator=generator).to(torch.bfloat16) for n in tokens],
    )


def answers_of(world: World, salt: int, hidden: int = HIDDEN) -> list[torch.Tensor]:
    """What each rank gives back for its rows: by no rule, of very different sizes."""
    generator = torch.Generator().manual_seed(salt)
    found = []
    for rank in range(world.num_ranks):
        n = len(world.rows_of(rank))
        size = 2.0 ** torch.randint(-12, 12, (n, 1), generator=generator)
        found.append((torch.randn((n, hidden), generator=generator) * size).to(torch.bfloat16))
    return found


def same(one: Any, other: Any, what: str) -> None:
    """The same bits, dtype and shape; contiguous."""
    assert isinstance(one, torch.Tensor), f"{what}: {type(one)}"
    assert one.dtype is other.dtype and one.shape == other.shape, (
        f"{what}: {one.dtype} {list(one.shape)}, want {other.dtype} {list(other.shape)}"
    )
    assert one.is_contiguous(), f"{what}: strides {one.stride()}"
    one, other = (t.contiguous().view(torch.uint8) if t.numel() else t for t in (one, other))
    assert torch.equal(one, other), f"{what} differs"
