"""vLLM's communicator at its end, with stand-ins for the modules of vLLM that it imports."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from moewire.errors import DeviceError, FencedError
from moewire.integrations import _buffers


class Stock:
    """vLLM's own manager, of which only the end counts here."""

    ended = 0

    def destroy(self) -> None:
        self.ended += 1


class Handle:
    """Of a rank that was fenced between its dispatch and its combine."""

    def release(self) -> None:
        raise FencedError("this rank is out of its group")


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """One with two micro-batches that no ``combine`` came for."""
    ours = "moewire.integrations.vllm.manager"
    names: dict[str, dict[str, Any]] = {
        "vllm.config": {"get_current_vllm_config": None},
        "vllm.distributed.device_communicators.all2all": {"AgRsAll2AllManager": Stock},
        "vllm.platforms": {"current_platform": None},
        "vllm.v1.worker.ubatching": {"dbo_current_ubatch_id": lambda: 0},
    }
    for name, members in names.items():
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            whole = ".".join(parts[:length])
            monkeypatch.setitem(sys.modules, whole, sys.modules.get(whole) or ModuleType(whole))
        for member, value in members.items():
            monkeypatch.setattr(sys.modules[name], member, value, raising=False)
    monkeypatch.delitem(sys.modules, ours, raising=False)
    one = importlib.import_module(ours).FlatAll2AllManager.__new__(
        sys.modules[ours].FlatAll2AllManager
    )
    one._place = object()
    one._sent = {batch: SimpleNamespace(handle=Handle()) for batch in range(2)}
    yield one
    del sys.modules[ours]


def test_a_fenced_rank_ends(manager: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[object] = []
    monkeypatch.setattr(_buffers, "close_buffers", closed.append)
    manager.destroy()
    assert (closed, manager.ended, manager._sent) == ([manager._place], 1, {})


def test_an_end_whose_buffers_cannot_be_closed(
    manager: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def close(place: object) -> None:
        raise DeviceError("the device works for it")

    monkeypatch.setattr(_buffers, "close_buffers", close)
    with pytest.raises(DeviceError, match="works for it"):
        manager.destroy()
    assert (manager.ended, manager._sent) == (1, {})


def test_a_step_after_one_that_was_broken_off(
    manager: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next dispatch raises the reason, not the release of the handles that were left over."""

    def dispatch(*_: object) -> None:
        raise FencedError("said by the dispatch")

    exchange = SimpleNamespace(dispatch=dispatch)
    monkeypatch.setattr(manager, "_refuse_copies_of_tokens", lambda _: None)
    monkeypatch.setattr(manager, "_exchange", lambda *_: exchange)
    given = SimpleNamespace(shape=(2, 2))
    with pytest.raises(FencedError, match="said by the dispatch"):
        manager.dispatch(given, given, given)
    assert list(manager._sent) == [1]
