"""DeepEP's interface on Moewire: its names, arguments and results.

``docs/deep_ep.md`` says what differs. To run code that imports ``deep_ep`` itself, see
``moewire.compat.deep_ep``.
"""

from __future__ import annotations

from .._base import needs_torch  # noqa: F401, isort: skip

import torch

from .._version import __version__
from ..event import EventOverlap
from ._buffer import Buffer
from ._config import Config
from ._elastic import ElasticBuffer
from ._ep_handle import EPHandle
from ._events import EventHandle
from ._hybrid import HybridEPBuffer

__all__ = [
    "Buffer",
    "Config",
    "EPHandle",
    "ElasticBuffer",
    "EventHandle",
    "EventOverlap",
    "HybridEPBuffer",
    "__version__",
    "topk_idx_t",
]

topk_idx_t = torch.int64
