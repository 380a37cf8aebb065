"""Which stream waits for which, with streams that are letters and a device that does nothing."""

from __future__ import annotations

import contextlib
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from moewire import _abi as abi
from moewire._cuda.handles import Answer, Answers
from moewire._cuda.operation import Launched
from moewire._cuda.streams import Streams
from moewire._native import deferred_log
from moewire.errors import CancelledError


class Device:
    """Streams that belong to the same capture are in ``captured``."""

    def __init__(self) -> None:
        self.captured = ""
        self.asked = 0
        self.followed: list[str] = []

    def capturing(self, stream: str) -> bool:
        self.asked += 1
        return stream in self.captured

    def follow(self, stream: str, other: str) -> None:
        assert (stream in self.captured) == (other in self.captured), "they cannot wait"
        self.followed.append(stream + other)


def launched(streams: Streams, device: Any, on: str) -> str:
    """Launches once on each of these streams; returns which stream followed which."""
    device.followed.clear()
    for stream in on:
        with streams.lock:
            try:
                streams.begin(stream)
            finally:
                streams.end()
    return " ".join(device.followed)


@pytest.mark.parametrize(
    ("steps", "want"),
    [
        # Streams that are captured, and those that are launched on then.
        ([("", "aab")], ["ba"]),
        ([("", "a"), ("s", "ss"), ("", "b")], ["", "", "ba"]),
        ([("", "a"), ("s", "s"), ("", "sa")], ["", "", "sa as"]),
        ([("", "a"), ("st", "stts"), ("", "ab")], ["", "ts st", "ba"]),
        # On the stream that something runs on, and on others of the same capture.
        ([("", "a"), ("at", "at"), ("", "b")], ["", "ta", "ba"]),
        ([("", "a"), ("at", "ta"), ("", "ab")], ["", "ta at", "ba"]),
        ([("", "a"), ("at", "atat"), ("", "ta")], ["", "ta at ta", "ta at"]),
        # A later capture follows nothing of an earlier one.
        ([("", "a"), ("s", "s"), ("t", "t"), ("", "b")], ["", "", "", "ba"]),
        ([("", "a"), ("s", "s"), ("at", "at"), ("", "b")], ["", "", "ta", "ba"]),
        # Operations that run beside a capture follow running ones.
        ([("", "a"), ("s", "sbs"), ("", "c")], ["", "ba", "cb"]),
        ([("s", "s"), ("", "a")], ["", ""]),
        # A stream that got operations unseen is known to be recorded.
        ([("", "a"), ("at", "abt")], ["", "ta"]),
        ([("", "a"), ("at", "abt"), ("", "cc")], ["", "ta", "ca cb"]),
        # A stream that could not be followed is followed when its capture has ended.
        ([("", "a"), ("a", "b"), ("", "ccb")], ["", "", "ca cb bc"]),
        ([("", "a"), ("a", "bcb"), ("", "bb")], ["", "cb bc", "ba"]),
        ([("", "a"), ("a", "b"), ("", "aac")], ["", "", "ab ca"]),
        ([("", "a"), ("a", "b"), ("s", "sb"), ("", "c")], ["", "", "ba", "cb"]),
        ([("", "a"), ("a", "b"), ("ab", "c"), ("b", "d"), ("", "d")], ["", "", "", "da dc", "db"]),
    ],
)
def test_order(steps: list[tuple[str, str]], want: list[str]) -> None:
    device: Any = Device()
    streams = Streams(device)
    found = []
    for captured, on in steps:
        device.captured = captured
        found.append(launched(streams, device, on))
    assert found == want


@pytest.mark.parametrize(("captured", "on"), [("", "ab"), ("ab", "ab")])
def test_order_after_a_failure(captured: str, on: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that could not be followed is followed by the next call."""
    device: Any = Device()
    streams = Streams(device)
    device.captured = captured
    launched(streams, device, on[0])
    with monkeypatch.context() as broken:
        broken.setattr(device, "follow", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            launched(streams, device, on[1])
    assert launched(streams, device, on[1]) == on[::-1]


def test_one_stream_asks_for_no_captures() -> None:
    """Asking for captures costs more than all other checks."""
    device: Any = Device()
    streams = Streams(device)
    launched(streams, device, "a")
    device.captured = "s"
    launched(streams, device, "s")
    device.captured = "a"
    launched(streams, device, "b")  # which cannot follow a
    device.captured, device.asked = "", 0
    launched(streams, device, "b")
    before = device.asked
    launched(streams, device, "bbb")
    assert device.asked == before


def test_what_follows_fails() -> None:
    """The error of a copy behind a second phase is not forgotten."""

    class Library:
        forked = False

        def op_wait(self, *_: object) -> int:
            return 0

        op_close = op_wait

    device: Any = Device()
    device.on = lambda stream: contextlib.nullcontext()
    runtime: Any = SimpleNamespace(lib=Library(), closed=False)
    op = abi.mw_op_t(1)
    operation = Launched(runtime, Streams(device), "a", False, op, None)
    operation.when_done(lambda: [][1])
    with pytest.raises(IndexError):
        operation.finish()
    for _ in range(2):
        with pytest.raises(CancelledError, match="list index out of range"):
            operation.finish()


def test_nobody_logs_under_the_lock(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread inside a log handler may come to wait for the lock."""
    device: Any = Device()
    streams, left = Streams(device), list[str]()
    monkeypatch.setattr(deferred_log, "leave", left.append)

    def fail() -> None:
        raise RuntimeError("no stream")

    with streams.lock:
        streams.begin("a")
        streams.put_off(fail)
        streams.end()
    assert not [one for one in caplog.records if one.thread == threading.get_ident()]
    assert left == ["a handle on CUDA could not be released: RuntimeError('no stream')"]


class Memory:
    """Gives out tensors, and knows which of them lie in a graph's pool."""

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype)


def test_words_of_answers() -> None:
    """Each answer has a word of its own, of its stream's allocation; a graph's word is alone."""
    place: Any = Memory()
    answers = Answers(place)
    turns = [("a", False)] * 300 + [("b", False)] * 2 + [("a", True), ("a", False), ("b", True)]
    made = [(stream, captured, *answers.take(stream, captured)) for stream, captured in turns]
    streams: dict[int, set[str]] = {}
    for number, (stream, captured, answer, address) in enumerate(made):
        assert address == answer.words[answer.at].data_ptr()
        answer.words[answer.at] = number
        assert answer.stream == stream
        assert (answer.words.numel() == 1) == captured
        streams.setdefault(answer.words.data_ptr(), set()).add(stream)
    assert [int(answer.words[answer.at]) for _, _, answer, _ in made] == list(range(len(made)))
    assert all(len(of) == 1 for of in streams.values())
    assert len(streams) == 2 + 1 + 1 + 2  # two for 300, one more after each change, the graphs'


def test_words_of_answers_that_threads_take() -> None:
    place: Any = Memory()
    answers = Answers(place)
    taken: list[list[int]] = [[] for _ in range(4)]
    kept: list[Answer] = []

    def take(into: list[int]) -> None:
        for _ in range(2000):
            answer, address = answers.take("a", False)
            kept.append(answer)
            into.append(address)

    threads = [threading.Thread(target=take, args=(into,)) for into in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({address for into in taken for address in into}) == 8000
