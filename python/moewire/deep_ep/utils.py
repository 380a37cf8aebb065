"""Events, under the name by which clients import them."""

from __future__ import annotations

from .._base import needs_torch  # noqa: F401, isort: skip

from ..event import EventOverlap
from ._events import EventHandle

__all__ = ["EventHandle", "EventOverlap"]
