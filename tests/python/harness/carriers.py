"""How the buffers that other code makes reach their ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import moewire


@contextmanager
def reached_by_tcp() -> Iterator[None]:
    """Fails at its end unless a buffer that was made meanwhile reached a rank by TCP."""
    carriers: set[str] = set()
    construct = moewire.Buffer.__init__

    def constructed(buffer: moewire.Buffer, *given: Any, **named: Any) -> None:
        construct(buffer, *given, **named)
        carriers.update(path["carrier"] for path in buffer.paths())

    with mock.patch.object(moewire.Buffer, "__init__", constructed):
        yield
    assert "tcp" in carriers, carriers
