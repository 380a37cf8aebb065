"""Other ways to do the same exchange, measured beside Moewire.

A peer that cannot run here is reported with its reason; the others are measured without it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Protocol, cast

import torch
import torch.distributed as dist

from .workload import Workload


class Unavailable(Exception):
    """A peer cannot run here; the text says why."""


class Peer(Protocol):
    """Dispatch and combine of one workload, identity experts. Every call is collective.

    With ``remote`` the peer works in processes of its own, and its steps take the time at which
    to begin and return when they began and ended.
    """

    name: str
    version: str
    remote: bool
    tolerance: float  # relative to the largest value; 0: the same bits

    def dispatch(self, begin: float = 0.0) -> tuple[float, float]: ...
    def compute(self, begin: float = 0.0) -> tuple[float, float]: ...
    def combine(self, begin: float = 0.0) -> tuple[float, float]: ...
    def result(self) -> torch.Tensor: ...
    def close(self) -> None: ...


def open_peers(
    modules: Mapping[str, str], work: Workload, group: dist.ProcessGroup, folder: str
) -> tuple[list[Peer], dict[str, str]]:
    """Collective: the peers that every rank could open, and why the others are missing.

    ``modules``: which module's ``connect`` opens a peer, by the peer's name. It is loaded here.
    """
    peers, failures = [], {}
    for name, module in modules.items():
        peer, reason = _try_open(module, work, group, folder)
        reason = first_reason(reason, group)
        if reason:
            failures[name] = reason
            if peer is not None:
                peer.close()
        elif peer is not None:
            peers.append(peer)
    return peers, failures


def _try_open(
    module: str, work: Workload, group: dist.ProcessGroup, folder: str
) -> tuple[Peer | None, str]:
    try:
        connect = importlib.import_module(module).connect
        return cast("Peer", connect(work, group, folder)), ""
    except Unavailable as error:
        return None, str(error)


def first_reason(reason: str, group: dist.ProcessGroup) -> str:
    """What the first rank that failed had to say; empty if none did."""
    reasons: list[str] = [""] * group.size()
    dist.all_gather_object(reasons, reason, group)
    return next((text for text in reasons if text), "")
