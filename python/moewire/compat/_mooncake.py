"""What ``mooncake.mooncake_ep_buffer`` has, on the device that upstream's clients expect."""

from __future__ import annotations

from .._base import needs_torch  # noqa: F401, isort: skip

from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from .. import buffer
from .._config import device as _gpu_config
from .._cuda import torch_cuda
from ..event import EventOverlap

if TYPE_CHECKING:
    import torch

__all__ = ["Buffer", "EventOverlap"]


class Buffer(buffer.Buffer):
    """``moewire.Buffer``, on the device of upstream's clients unless one is given.

    Args:
        group, num_ep_buffer_bytes, disable_p2p: as of ``moewire.Buffer``; on CUDA the bytes are
            needed, from ``get_ep_buffer_size_hint``.
        device: "cuda", "cuda:N", "cpu" or a ``torch.device``, the same kind on all ranks; None:
            torch's current CUDA device, or the CPU where there is none.
        options: the other arguments of ``moewire.Buffer``.

    As upstream, and unlike ``moewire.Buffer``, a third dispatch takes the slot of the first
    operation if its handle is held and was not combined: it overwrites the rows. The logger
    ``moewire`` warns of that once.

    ``from_store`` and ``from_exchange`` are those of ``moewire.Buffer``: on the CPU unless
    ``device`` is given.
    """

    _overwrites_held = True

    def __init__(
        self,
        group: dist.ProcessGroup,
        num_ep_buffer_bytes: int = 0,
        disable_p2p: bool = False,
        *,
        device: str | torch.device | None = None,
        **options: Any,
    ) -> None:
        device, hint = torch_cuda.chosen(device), "get_ep_buffer_size_hint"
        _gpu_config.refuse_unsized(device, "num_ep_buffer_bytes", num_ep_buffer_bytes, hint)
        super().__init__(group, num_ep_buffer_bytes, disable_p2p, device=device, **options)
