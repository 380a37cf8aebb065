"""Where a process of the benchmark is, and what all of them measure."""

from __future__ import annotations

from typing import Any, NamedTuple

from .network import ADDRESSES


class Settings(NamedTuple):
    """What is the same for every process."""

    links: tuple[int, ...]  # Mbit/s; 0: not limited
    sizes: tuple[int, ...]
    connections: tuple[int, ...]
    peers: tuple[str, ...]
    repeat: int
    warmup: int
    seed: int
    ranks: tuple[int, ...]  # of exchanges, in all
    tokens: int
    hidden: int
    experts: int
    topk: int
    share_processors: bool  # both hosts run on all of them


class Place(NamedTuple):
    """One of the two processes that write."""

    host: int  # 0 writes to 1
    namespace: str  # of network, a file
    folder: str  # where both may write
    orders: Any  # a Connection to the other one
    handshakes: Any  # another, for Moewire's handshakes

    @property
    def address(self) -> str:
        """This host's."""
        return ADDRESSES[self.host]


class RankPlace(NamedTuple):
    """One rank of an exchange."""

    rank: int
    namespace: str
    folder: str
    host: int
    key: str  # that ranks share, 64 hexadecimal digits
