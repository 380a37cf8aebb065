"""What is asked of torch about a CUDA device, with stand-ins for what needs one."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from moewire._cuda import torch_cuda
from moewire._cuda.torch_cuda import TorchCuda

OURS, ANOTHER = 1, 0
TYPES = {
    "|u1": [torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2, torch.bool],
    "<i2": [torch.int16, torch.bfloat16, torch.float16],
    "<i4": [torch.int32, torch.float32],
    "<i8": [torch.int64, torch.float64],
}


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> TorchCuda:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    return TorchCuda(OURS)


class Reader:
    """``torch.as_tensor`` of an array of a device, by the one that numpy has of the host's."""

    def __init__(self, *, copies: bool = False) -> None:
        self.seen: list[tuple[dict[str, Any], torch.device]] = []
        self._copies = copies

    def __call__(self, array: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        said = array.__cuda_array_interface__
        self.seen.append((said, device))

        class Host:
            __array_interface__ = said
            kept = array  # as long as the memory is looked at

        made = torch.from_numpy(np.asarray(Host()))
        assert made.dtype is dtype  # else a device would be asked for a copy
        return made.clone() if self._copies else made


class Memory:
    """Bytes that are not freed while it lives."""

    def __init__(self, num_bytes: int) -> None:
        self.bytes = (ctypes.c_ubyte * num_bytes)(*(i * 37 % 251 for i in range(num_bytes)))
        self.address = ctypes.addressof(self.bytes)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(kind, dtype) for kind, all_ in TYPES.items() for dtype in all_],
    ids=str,
)
def test_a_view_is_the_memory_itself(
    monkeypatch: pytest.MonkeyPatch, place: TorchCuda, kind: str, dtype: torch.dtype
) -> None:
    reader = Reader()
    monkeypatch.setattr(torch, "as_tensor", reader)
    shape = (2, 3, 8)
    memory = Memory(48 * int(kind[2]))
    view = place.view(memory.address, shape, dtype, memory)
    said = {
        "shape": shape,
        "typestr": kind,
        "data": (memory.address, False),
        "strides": None,
        "version": 3,
    }
    assert reader.seen == [(said, torch.device("cuda", OURS))]
    assert view.dtype == dtype and view.shape == shape and view.is_contiguous()
    assert view.data_ptr() == memory.address
    assert bytes(view.view(torch.uint8).numpy()) == bytes(memory.bytes)
    memory.bytes[48 * int(kind[2]) - 1] = 252  # which was no other's
    assert view.view(torch.uint8).flatten()[-1] == 252
    view.view(torch.uint8)[0, 0, 0] = 253
    assert memory.bytes[0] == 253


def test_the_owner_goes_with_the_last_view(
    monkeypatch: pytest.MonkeyPatch, place: TorchCuda
) -> None:
    monkeypatch.setattr(torch, "as_tensor", Reader())
    memory = Memory(4 * 128 * 2)
    lives, address = weakref.ref(memory), memory.address
    first = place.view(address, (4, 128), torch.bfloat16, memory)
    second = place.view(address + 256, (3, 128), torch.bfloat16, memory)
    part, again = first[1:].view(torch.uint8), second.view(torch.int16).flatten()
    del memory, first, second
    for last in ("part", "again"):
        gc.collect()
        assert lives() is not None, f"{last} looks at it"
        if last == "part":
            assert part[0, 1].item() == 257 * 37 % 251
            del part
        else:
            del again
    gc.collect()
    assert lives() is None


def test_a_copy_is_no_view(monkeypatch: pytest.MonkeyPatch, place: TorchCuda) -> None:
    monkeypatch.setattr(torch, "as_tensor", Reader(copies=True))
    memory = Memory(64)
    with pytest.raises(AssertionError, match=r"torch copied \(4, 8\) torch.int16 instead of view"):
        place.view(memory.address, (4, 8), torch.int16, memory)


@pytest.mark.parametrize("shape", [(0,), (0, 128), (2, 0, 128)])
def test_nothing_is_viewed_where_there_is_nothing(
    monkeypatch: pytest.MonkeyPatch, place: TorchCuda, shape: tuple[int, ...]
) -> None:
    """CUDA's arrays of no elements have no address; torch makes such a tensor itself."""
    asked: list[tuple[Any, ...]] = []

    def empty(shape: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> Any:
        asked.append((shape, dtype, device))
        return np.empty(shape)

    reader, owner = Reader(), Memory(1)
    lives = weakref.ref(owner)
    monkeypatch.setattr(torch, "as_tensor", reader)
    monkeypatch.setattr(torch, "empty", empty)
    made = place.view(0, shape, torch.bfloat16, owner)
    assert made.shape == shape and not reader.seen
    assert asked == [(shape, torch.bfloat16, torch.device("cuda", OURS))]
    del owner
    gc.collect()
    assert lives() is None


class Stream:
    def __init__(self, device: int, number: int) -> None:
        self.device, self.cuda_stream, self.captured = device, number, False
        self.calls: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> str:
            self.calls.append((name, args))
            return f"what {name} gives"

        return call


class Cuda:
    """``torch.cuda`` of two devices: each has a current stream, the thread a current device."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.device = ANOTHER
        self.streams = {device: Stream(device, 100 * device + 7) for device in (OURS, ANOTHER)}
        self.made = 0
        for name in ("current_device", "current_stream", "stream", "is_current_stream_capturing"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        monkeypatch.setattr(
            torch_cuda, "_current_number", lambda device: self.streams[device].cuda_stream
        )

    def current_device(self) -> int:
        return self.device

    def current_stream(self, device: torch.device) -> Stream:
        self.made += 1
        return self.streams[device.index]

    def is_current_stream_capturing(self) -> bool:
        return self.streams[self.device].captured

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before = self.device, self.streams[stream.device]
        self.device, self.streams[stream.device] = stream.device, stream
        try:
            yield
        finally:
            self.device, self.streams[stream.device] = before


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    return Cuda(monkeypatch)


def test_on_a_stream_of_another_device(place: TorchCuda, cuda: Cuda) -> None:
    before, side = dict(cuda.streams), Stream(OURS, 5)
    with place.on(side):
        assert cuda.device == OURS and place.stream() is side
    assert cuda.device == ANOTHER and cuda.streams == before


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("current", [OURS, ANOTHER])
def test_whose_capture_it_is(place: TorchCuda, cuda: Cuda, current: int, captured: bool) -> None:
    """The other device's current stream is captured where this one's is not."""
    cuda.device = current
    cuda.streams[OURS].captured, cuda.streams[ANOTHER].captured = captured, not captured
    before, side = dict(cuda.streams), Stream(OURS, 5)
    side.captured = not captured
    assert place.recording() is captured
    assert place.capturing(cuda.streams[OURS]) is captured
    assert place.capturing(side) is not captured
    assert cuda.device == current and cuda.streams == before


def test_a_stream_is_one_object_per_number(place: TorchCuda, cuda: Cuda) -> None:
    first = place.stream()
    assert first is cuda.streams[OURS] and place.stream() is first and cuda.made == 1
    other = cuda.streams[OURS] = Stream(OURS, 8)
    assert place.stream() is other and cuda.made == 2
    cuda.streams[OURS] = first
    assert place.stream() is first and cuda.made == 2


def test_streams_that_are_known_are_bounded(place: TorchCuda, cuda: Cuda) -> None:
    for number in range(3 * torch_cuda._MAX_STREAMS):
        cuda.streams[OURS] = Stream(OURS, number)
        assert place.handle(place.stream()) == number
        assert 0 < len(place._streams) <= torch_cuda._MAX_STREAMS


def test_a_torch_that_gives_no_numbers(
    monkeypatch: pytest.MonkeyPatch, place: TorchCuda, cuda: Cuda
) -> None:
    monkeypatch.setattr(torch_cuda, "_current_number", None)
    assert place.stream() is cuda.streams[OURS]
    cuda.streams[OURS] = Stream(OURS, cuda.streams[OURS].cuda_stream)
    assert place.stream() is cuda.streams[OURS] and cuda.made == 2


def test_what_streams_are_asked(place: TorchCuda) -> None:
    stream, other = Stream(OURS, 5), Stream(OURS, 6)
    place.follow(stream, other)
    assert place.record(stream) == "what record_event gives"
    place.wait(stream, event := object())
    place.finish(stream)
    assert stream.calls == [
        ("wait_stream", (other,)),
        ("record_event", ()),
        ("wait_event", (event,)),
        ("synchronize", ()),
    ]
    assert other.calls == []
    assert place.handle(other) == 6


def test_a_tensor_is_kept_for_a_stream(place: TorchCuda) -> None:
    stream, kept = Stream(OURS, 5), []

    class Tensor:
        def record_stream(self, stream: Stream) -> None:
            kept.append((self, stream))

    tensor: Any = Tensor()
    place.keep(tensor, stream)
    assert kept == [(tensor, stream)]


@pytest.mark.parametrize(
    ("device", "holds"), [(OURS, True), (ANOTHER, False), (None, False)], ids=str
)
def test_whose_tensor_it_is(place: TorchCuda, device: int | None, holds: bool) -> None:
    class Tensor:
        is_cuda = device is not None

        def get_device(self) -> int:
            return -1 if device is None else device

    tensor: Any = Tensor()
    assert place.holds(tensor) is holds
