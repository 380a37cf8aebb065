"""What SGLang gets where it imports ``mooncake.mooncake_ep_buffer``."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from .. import buffer
from ..event import EventOverlap

if TYPE_CHECKING:
    import torch.distributed as dist

__all__ = ["Buffer", "EventOverlap"]


class Buffer(buffer.Buffer):
    """``moewire.Buffer``, except that a process which is to rejoin begins alone.

    SGLang's joiner warms up with a mask in which only it is active, and needs a buffer for
    that; only later do the others and the joiner call ``update_ep_member``.
    """

    def __init__(
        self, group: dist.ProcessGroup, num_ep_buffer_bytes: int = 0, disable_p2p: bool = False
    ) -> None:
        members = _members(group)
        super().__init__(group, num_ep_buffer_bytes, disable_p2p, members=members)


def _members(group: dist.ProcessGroup) -> list[int] | None:
    """This rank, if SGLang's elastic state says that it is on its own; None: all."""
    elastic = importlib.import_module("sglang.srt.elastic_ep.elastic_ep")
    state = elastic.ElasticEPStateManager.instance()
    if state is None or state.active_ranks is None or group.size() == 1:
        return None
    active: list[int] = state.active_ranks[: group.size()].nonzero().view(-1).tolist()
    return active if active == [group.rank()] else None
