"""HybridEP's buffer and its helper, under the name by which clients import them."""

from __future__ import annotations

from .._base import needs_torch  # noqa: F401, isort: skip

from ._hybrid import HybridEPBuffer
from ._hybrid_map import indices_to_map

__all__ = ["HybridEPBuffer", "indices_to_map"]
