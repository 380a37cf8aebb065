"""Closing the Buffers that MoE layers share."""

from __future__ import annotations

from typing import Any

import pytest

from moewire.errors import DeviceError
from moewire.integrations import _buffers


class Closing:
    """A buffer that cannot be closed so many times."""

    def __init__(self, name: str, failures: int) -> None:
        self.name, self.failures, self.closed = name, failures, 0

    def close(self) -> None:
        self.closed += 1
        if self.closed <= self.failures:
            raise DeviceError(f"{self.name} is busy")


def test_what_could_not_be_closed_is_closed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {name: Closing(name, failures) for name, failures in (("a", 1), ("b", 0), ("c", 2))}
    kept: dict[Any, Any] = dict(made)
    monkeypatch.setattr(_buffers, "_buffers", kept)
    with pytest.raises(DeviceError, match="c is busy"):  # the last one made is closed first
        _buffers.close_buffers()
    assert [made[name].closed for name in "abc"] == [1, 1, 1]
    assert set(kept) == {"a", "c"}
    with pytest.raises(DeviceError, match="c is busy"):
        _buffers.close_buffers()
    _buffers.close_buffers()
    assert not kept
    assert [made[name].closed for name in "abc"] == [2, 1, 3]
