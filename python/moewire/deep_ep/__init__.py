"""DeepEP's ``Buffer`` on Moewire: its names, arguments and results.

``docs/deep_ep.md`` says what differs. To run code that imports ``deep_ep`` itself, see
``moewire.compat.deep_ep``.
"""

from __future__ import annotations

from .._base import needs_torch  # noqa: F401, isort: skip

from typing import NoReturn

import torch

from .._version import __version__
from ..event import EventOverlap
from ._buffer import Buffer
from ._config import Config
from ._events import EventHandle

__all__ = ["Buffer", "Config", "EventHandle", "EventOverlap", "__version__", "topk_idx_t"]

topk_idx_t = torch.int64


def __getattr__(name: str) -> NoReturn:
    if name in ("ElasticBuffer", "EPHandle"):
        raise AttributeError(
            f"moewire.deep_ep has no {name}: of DeepEP it has Buffer alone, with its "
            "low-latency mode (low_latency_dispatch) and its normal mode (dispatch)"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
