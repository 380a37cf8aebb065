"""One workspace for all buffers of a process group: clients make one per layer."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

import torch

from .. import buffer as core
from ..errors import ClosedError

if TYPE_CHECKING:
    import torch.distributed as dist

# Entered again where a share is collected while another one is made.
_lock = threading.RLock()
# By group and device. A buffer that is not used any more leaves its group by itself.
_cores: dict[tuple[int, str], tuple[weakref.ref[object], weakref.ref[core.Buffer]]] = {}


class SharedCore:
    """A share of a group's ``moewire.Buffer``. The last share that is closed closes it.

    Args:
        group: every rank makes the same shares in the same order.
        num_bytes: of the workspace, if this is the first share.
        device: where tensors lie.
    """

    def __init__(
        self, group: dist.ProcessGroup, num_bytes: int, device: str | torch.device | None
    ) -> None:
        key = (id(group), str(device))
        with _lock:
            buffer = _known(key, group)
            if buffer is None:
                buffer = core.Buffer(group, num_bytes, device=device)
                _cores[key] = (weakref.ref(group), weakref.ref(buffer))
            self._count = _shares.setdefault(buffer, [0])
            self._count[0] += 1
        self._buffer: core.Buffer | None = buffer

    @property
    def buffer(self) -> core.Buffer:
        """The buffer; raises after ``close``."""
        if self._buffer is None:
            raise ClosedError("buffer was destroyed")
        return self._buffer

    def close(self) -> None:
        """Gives the share up. Idempotent."""
        with _lock:
            buffer, self._buffer = self._buffer, None
            if buffer is None:
                return
            self._count[0] -= 1
            last = self._count[0] == 0
        if last:
            buffer.close()

    def __del__(self) -> None:
        if getattr(self, "_buffer", None) is not None and _lock is not None:
            with _lock:
                self._count[0] -= 1
            self._buffer = None


_shares: weakref.WeakKeyDictionary[core.Buffer, list[int]] = weakref.WeakKeyDictionary()


def _known(key: tuple[int, str], group: object) -> core.Buffer | None:
    """The open buffer of just this group."""
    refs = _cores.get(key)
    if refs is None or refs[0]() is not group:
        return None
    buffer = refs[1]()
    return None if buffer is None or buffer.runtime.closed else buffer
