"""Which rank sent how many rows to which, as the core counted it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..integrations.transformers import Stats


@dataclass
class RankTraffic:
    """One rank's part."""

    num_tokens: int  # that went through the model here
    num_routed: int  # the same, times layers, times experts per token: what should be counted
    num_layers: int
    # By the core's counters:
    num_dispatches: int
    num_combines: int
    sent: int
    received: int
    reduced: int
    sent_to: list[int]
    rows_per_expert: list[list[int]]  # by layer and local expert

    @classmethod
    def between(
        cls,
        before: dict[str, Any],
        after: dict[str, Any],
        layers: Sequence[Stats],
        num_routed: int,
        num_tokens: int,
    ) -> RankTraffic:
        """From two readings of ``Buffer.counters``."""

        def grown(name: str) -> int:
            return int(after[name] - before[name])

        sent_to = zip(after["num_rows_sent_to"], before["num_rows_sent_to"], strict=True)
        return cls(
            num_tokens=num_tokens,
            num_routed=num_routed,
            num_layers=len(layers),
            num_dispatches=grown("num_dispatches"),
            num_combines=grown("num_combines"),
            sent=grown("num_rows_sent"),
            received=grown("num_rows_received"),
            reduced=grown("num_rows_reduced"),
            sent_to=[int(later - earlier) for later, earlier in sent_to],
            rows_per_expert=[list(layer.rows_per_expert) for layer in layers],
        )


class Traffic:
    """All ranks' parts together."""

    def __init__(self, ranks: list[RankTraffic]) -> None:
        self.ranks = ranks
        self.num_ranks = len(ranks)
        self.matrix = [one.sent_to[: len(ranks)] for one in ranks]  # [from][to]

    @property
    def total(self) -> int:
        """Rows sent by all."""
        return sum(one.sent for one in self.ranks)

    @property
    def load(self) -> list[list[int]]:
        """Rows that each expert computed, by layer and global expert."""
        num_layers = self.ranks[0].num_layers
        return [
            [rows for one in self.ranks for rows in one.rows_per_expert[layer]]
            for layer in range(num_layers)
        ]

    def differences(self, num_steps: int) -> list[str]:
        """Where the counts differ from those of the steps, layers and tokens; empty: nowhere."""
        found: list[str] = []
        for rank, one in enumerate(self.ranks):
            calls = num_steps * one.num_layers
            arrived = sum(row[rank] for row in self.matrix)
            computed = sum(map(sum, one.rows_per_expert))
            for name, counted, expected in (
                ("dispatches", one.num_dispatches, calls),
                ("combines", one.num_combines, calls),
                ("rows sent", one.sent, one.num_routed),
                ("rows sent, summed by receiver", sum(one.sent_to), one.num_routed),
                ("rows reduced", one.reduced, one.num_routed),
                ("rows received", one.received, arrived),
                ("rows computed", computed, arrived),
            ):
                if counted != expected:
                    found.append(f"rank {rank}: {name}: {counted}, should be {expected}")
        return found
