"""Where the ranks of an exchange meet, and the device of their Buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _buffers
from . import _platform

if TYPE_CHECKING:
    import torch.distributed as dist


def of(group: dist.ProcessGroup) -> _buffers.InGroup:
    """The ranks of vLLM's expert-parallel group, with vLLM's tensors."""
    return _buffers.InGroup(group, _platform.tensor_device())
