"""One workspace for all buffers of a process group: clients make one per layer."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import TYPE_CHECKING

import torch

from .. import buffer as core
from ..errors import ClosedError

if TYPE_CHECKING:
    import torch.distributed as dist

    Shares = weakref.WeakSet["SharedCore"]


class _Workspace:
    """Where the buffer of one group is kept, as long as a share of it is."""

    def __init__(self, group: object) -> None:
        self.group = weakref.ref(group)
        self.lock = threading.Lock()  # only calls of the application take it, never a finalizer
        self.buffer: weakref.ref[core.Buffer] | None = None
        self.shares: Shares = weakref.WeakSet()

    def usable(self) -> core.Buffer | None:
        """The buffer, if it takes calls: not after a lost rank."""
        buffer = None if self.buffer is None else self.buffer()
        if buffer is None or buffer.runtime.closed or buffer.rank not in buffer.members():
            return None
        return buffer


_lock = threading.Lock()  # of the table
_workspaces: dict[tuple[int, str], _Workspace] = {}


class SharedCore:
    """A share of a group's ``moewire.Buffer``. The last share that is closed closes it.

    A share that is dropped needs no close: a buffer without shares leaves its group by itself.

    Args:
        group: every rank makes the same shares in the same order.
        num_bytes: of the workspace, if this is the first share; the same on every rank.
        device: where tensors lie.
    """

    def __init__(
        self, group: dist.ProcessGroup, num_bytes: int, device: str | torch.device | None
    ) -> None:
        self._workspace = workspace = _workspace_of((id(group), str(device)), group)
        with workspace.lock:
            if workspace.usable() is not None:
                gc.collect()  # else ranks would differ in whether a dropped one is still there
            buffer = workspace.usable()
            if buffer is None:
                buffer = core.Buffer(group, num_bytes, device=device)
                workspace.buffer, workspace.shares = weakref.ref(buffer), weakref.WeakSet()
            self._shares = workspace.shares
            self._shares.add(self)
        self._buffer: core.Buffer | None = buffer

    @property
    def buffer(self) -> core.Buffer:
        """The buffer; raises after ``close``."""
        if self._buffer is None:
            raise ClosedError("buffer was destroyed")
        return self._buffer

    def close(self) -> None:
        """Gives the share up. Idempotent."""
        with self._workspace.lock:
            buffer, self._buffer = self._buffer, None
            self._shares.discard(self)
            if buffer is None or len(self._shares):
                return
            if self._shares is self._workspace.shares:
                self._workspace.buffer = None
            buffer.close()


def _workspace_of(key: tuple[int, str], group: object) -> _Workspace:
    with _lock:
        for other in [key for key, workspace in _workspaces.items() if workspace.group() is None]:
            del _workspaces[other]
        workspace = _workspaces.get(key)
        if workspace is None or workspace.group() is not group:
            workspace = _workspaces[key] = _Workspace(group)
        return workspace
