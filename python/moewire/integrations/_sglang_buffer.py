"""The module that SGLang gets as ``mooncake.mooncake_ep_buffer``."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch.distributed as dist

from .. import buffer
from .._config import tuning as _tuning
from .._cuda import torch_cuda
from .._member import CONNECT_TIMEOUT_US, Options
from .._rendezvous.bootstrap import group_rendezvous
from .._rendezvous.by_store import StoreRendezvous
from ..compat import _mooncake
from ..event import EventOverlap

if TYPE_CHECKING:
    from .._rendezvous.bootstrap import Rendezvous

__all__ = ["Buffer", "EventOverlap"]


class Buffer(_mooncake.Buffer):
    """``compat``'s Buffer, but a process that replaces a rank begins alone.

    SGLang's joiner warms up with a mask in which only it is active, and needs a buffer for
    that. Only later do the others and the joiner call ``update_ep_member``. That call allocates the
    joiner's memory anew: graphs that it captured with the first addresses must be captured again,
    and its counters begin at 0. If the call raises, the process has to be started again.
    """

    def __init__(
        self, group: dist.ProcessGroup, num_ep_buffer_bytes: int = 0, disable_p2p: bool = False
    ) -> None:
        self._apart = _alone(group)
        if not self._apart:
            super().__init__(group, num_ep_buffer_bytes, disable_p2p)
            return
        self.group = group
        self.disable_p2p = bool(disable_p2p)
        own = StoreRendezvous(dist.HashStore(), group.rank(), group.size(), buffer.STORE_PREFIX)
        self._begin(own, num_ep_buffer_bytes, [group.rank()], CONNECT_TIMEOUT_US)

    def update_ep_member(
        self, *, members: Sequence[int] | None = None, timeout_us: int = CONNECT_TIMEOUT_US
    ) -> None:
        """As ``moewire.Buffer``'s; a rank that began alone joins the others."""
        if not self._apart:
            super().update_ep_member(members=members, timeout_us=timeout_us)
            return
        assert self.group is not None
        self.close()
        rendezvous = group_rendezvous(self.group, buffer.STORE_PREFIX)
        self._begin(rendezvous, self.num_ep_buffer_bytes, None, timeout_us)
        self._apart = False

    def _begin(
        self, rendezvous: Rendezvous, num_bytes: int, members: Sequence[int] | None, timeout_us: int
    ) -> None:
        tuning = _tuning.native(_tuning.Tuning(device=torch_cuda.chosen(None)))
        options = Options(connect_timeout_us=timeout_us, members=members, tuning=tuning)
        self._open(rendezvous, num_bytes, options)


def _alone(group: dist.ProcessGroup) -> bool:
    """Whether SGLang's elastic state has no active rank but this one."""
    elastic = importlib.import_module("sglang.srt.elastic_ep.elastic_ep")
    state = elastic.ElasticEPStateManager.instance()
    if state is None or state.active_ranks is None or group.size() == 1:
        return False
    active: list[int] = state.active_ranks[: group.size()].nonzero().view(-1).tolist()
    return active == [group.rank()]
