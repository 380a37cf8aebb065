"""What is timed: each side does a scatter and a gather of the same rows."""

from __future__ import annotations

import itertools

import torch
import torch.distributed as dist

import moewire

from .shape import BLOCK, Shape

TIMEOUT_US = 120_000_000


class Inputs:
    """A rank's tokens. Values are small whole numbers, of which every sum is exact."""

    def __init__(self, shape: Shape, rank: int) -> None:
        random = torch.Generator().manual_seed(rank)
        draw = torch.rand((shape.tokens, shape.experts), generator=random)
        self.ids = draw.topk(shape.topk, dim=1).indices.contiguous()
        x = torch.randint(-4, 5, (shape.tokens, shape.hidden), generator=random)
        bf16 = shape.dtype == "bf16"
        self.x = x.to(torch.bfloat16 if bf16 else torch.float8_e4m3fn).view(torch.uint8)
        shape_of_scales = (shape.tokens, shape.hidden // BLOCK)
        self.scales = None if bf16 else torch.rand(shape_of_scales, generator=random)
        owner = self.ids // (shape.experts // shape.ranks)
        self.in_rank = torch.zeros((shape.tokens, shape.ranks), dtype=torch.bool)
        self.in_rank.scatter_(1, owner, True)


class Ours:
    """A scatter and a gather of a routing that is there."""

    def __init__(self, buffer: moewire.Buffer, shape: Shape, given: Inputs) -> None:
        self._buffer, self._shape, self._given = buffer, shape, given
        self.make()
        num_rows = self.routing.num_rows
        self.rows = torch.empty((num_rows, given.x.shape[1]), dtype=torch.uint8)
        self.scales: torch.Tensor | None = None
        self.y = outputs(num_rows, shape.hidden)
        self.out = torch.empty((shape.tokens, shape.hidden), dtype=torch.bfloat16)

    def make(self) -> None:
        self.routing = self._buffer.make_routing(
            self._given.ids, self._shape.experts, timeout_us=TIMEOUT_US
        )

    def scatter(self) -> None:
        given = self._given
        got = self._buffer.scatter(
            self.routing, given.x, extra=given.scales, out=self.rows, timeout_us=TIMEOUT_US
        )
        self.scales = got.extra

    def gather(self) -> None:
        self._buffer.gather(self.routing, self.y, out=self.out, timeout_us=TIMEOUT_US)


class Gloo:
    """all_to_all_single of packed rows. Who sends how many is known before."""

    def __init__(self, shape: Shape, given: Inputs, ours: Ours) -> None:
        self._given, self._shape = given, shape
        per_rank = [given.in_rank[:, rank].nonzero()[:, 0] for rank in range(shape.ranks)]
        self._tokens = torch.cat(per_rank)
        self._sends = [len(one) for one in per_rank]
        first = ours.routing.rows_from
        self._takes = [end - begin for begin, end in itertools.pairwise(first)]
        self.rows, self.y = torch.empty_like(ours.rows), ours.y
        self.scales: torch.Tensor | None = None
        if given.scales is not None:
            self.scales = torch.empty((len(ours.rows), given.scales.shape[1]))
        self._back = torch.empty((len(self._tokens), shape.hidden), dtype=torch.bfloat16)
        self.out = torch.empty_like(ours.out)

    def scatter(self) -> None:
        given = self._given
        self._exchange(self.rows, given.x[self._tokens], self._takes, self._sends)
        if given.scales is not None and self.scales is not None:
            self._exchange(self.scales, given.scales[self._tokens], self._takes, self._sends)

    def gather(self) -> None:
        self._exchange(self._back, self.y, self._sends, self._takes)
        sums = torch.zeros((self._shape.tokens, self._shape.hidden))
        sums.index_add_(0, self._tokens, self._back.float())
        self.out.copy_(sums)

    def _exchange(
        self, to: torch.Tensor, rows: torch.Tensor, takes: list[int], sends: list[int]
    ) -> None:
        dist.all_to_all_single(to.view(torch.uint8), rows.view(torch.uint8), takes, sends)


class Floor:
    """Two passes over as many bytes as this rank receives."""

    def __init__(self, ours: Ours, given: Inputs) -> None:
        scales = 0 if given.scales is None else 4 * given.scales.shape[1]
        sent = int(given.in_rank.sum())
        self._scatter = _copies(len(ours.rows) * (given.x.shape[1] + scales))
        self._gather = _copies(sent * 2 * ours.y.shape[1])

    def scatter(self) -> None:
        _twice(*self._scatter)

    def gather(self) -> None:
        _twice(*self._gather)


def outputs(num_rows: int, hidden: int) -> torch.Tensor:
    """What experts give for the rows: whole numbers."""
    row = torch.arange(num_rows)[:, None]
    return ((row * 7 + torch.arange(hidden) * 3) % 13 - 6).to(torch.bfloat16)


def _copies(num_bytes: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return tuple(torch.ones(num_bytes, dtype=torch.uint8) for _ in range(3))


def _twice(source: torch.Tensor, slab: torch.Tensor, to: torch.Tensor) -> None:
    slab.copy_(source)
    to.copy_(slab)
