"""What one prefill is."""

from __future__ import annotations

from typing import NamedTuple

from moewire.errors import InvalidArgument

DTYPES = ("bf16", "fp8")
BLOCK = 128  # values of a scale
# Of rows that a rank receives: what a side reads or writes at a time, and what is compared.
_COPIES = 9


class Shape(NamedTuple):
    """R, T of each rank, E, H, K, and the type of the rows that are scattered."""

    ranks: int
    tokens: int
    experts: int
    hidden: int
    topk: int
    dtype: str

    @property
    def name(self) -> str:
        return f"R={self.ranks} T={self.tokens} E={self.experts} H={self.hidden} {self.dtype}"

    @property
    def row_bytes(self) -> int:
        """Of a row that is scattered, with its scales."""
        return 2 * self.hidden if self.dtype == "bf16" else self.hidden + 4 * (self.hidden // BLOCK)

    def check(self) -> None:
        """Refuses what cannot be measured.

        Raises:
            InvalidArgument: the option, what is given, what is allowed.
        """
        whole = self.ranks >= 1 and self.experts >= 1 and self.experts % self.ranks == 0
        for option, given, right, allowed in (
            ("ranks", self.ranks, 1 <= self.ranks <= 48, "1 to 48"),
            ("tokens", self.tokens, self.tokens >= 1, "1 and more"),
            ("experts", self.experts, whole, f"multiples of {self.ranks}"),
            (
                "hidden",
                self.hidden,
                self.hidden >= BLOCK and self.hidden % BLOCK == 0,
                f"multiples of {BLOCK}",
            ),
            ("topk", self.topk, 1 <= self.topk <= min(64, self.experts), "1 to 64, at most E"),
            ("dtypes", self.dtype, self.dtype in DTYPES, ", ".join(DTYPES)),
        ):
            if not right:
                raise InvalidArgument(f"--{option} {given}: allowed: {allowed}")

    def lacking_memory(self) -> str:
        """Why there is no room for this shape; empty if there is."""
        needed = self.ranks * (self.ranks * self.tokens * 2 * self.hidden * _COPIES + (1 << 28))
        there = _available()
        if needed <= there:
            return ""
        return f"needs about {needed >> 20} MiB, of which {there >> 20} are available"


def _available() -> int:
    with open("/proc/meminfo") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return 0
