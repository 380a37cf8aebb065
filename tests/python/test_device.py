"""Which device a Buffer is made on, and what happens where there is none."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from harness import emulator
from moewire import Buffer, InvalidArgument
from moewire import _abi as abi
from moewire._config import device as _gpu_config
from moewire._cuda import torch_cuda
from moewire._cuda.report import DRIVER_VARIABLE
from moewire.errors import NoDeviceError

_NOWHERE = "/there/is/no/driver.so"
_BYTES = 1 << 22


def _buffer(num_bytes: int = _BYTES, **options: object) -> Buffer:
    return Buffer.from_store(dist.HashStore(), 0, 1, num_bytes, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["cuda", "cuda:1", torch.device("cuda"), torch.device("cuda:0")])
def test_without_a_driver(device: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DRIVER_VARIABLE, _NOWHERE)
    with pytest.raises(
        NoDeviceError, match=f"no CUDA device: library not found; tried: {_NOWHERE}"
    ):
        _buffer(device=device)


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "cuda:-1", 0, torch.device("meta")])
def test_no_such_device(device: object) -> None:
    with pytest.raises(
        InvalidArgument, match=r"device: .* given; allowed: 'cpu', 'cuda', 'cuda:N'"
    ):
        _buffer(device=device)


@pytest.mark.parametrize("number", ["65537", "4294967296", "9" * 5000], ids=len)
def test_no_such_number(number: str) -> None:
    with pytest.raises(InvalidArgument, match=r"device: .* given; .* N up to 65536"):
        _buffer(device=f"cuda:{number}")


def test_the_cpu_has_no_fields() -> None:
    assert _gpu_config.native("cpu") == _gpu_config.native(torch.device("cpu")) == {}


def test_who_is_fenced_is_killed_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """An argument goes before the variable, which is for buffers on CUDA only."""
    kill = abi.MW_CONFIG_KILL_FENCED
    monkeypatch.delenv("MOEWIRE_ON_FENCE", raising=False)
    asked = _gpu_config.fence_flags
    assert asked(None, "cuda") == asked("wait", "cuda") == asked(None, None) == 0
    assert asked("kill", "cuda:1") == kill
    monkeypatch.setenv("MOEWIRE_ON_FENCE", "kill")
    assert asked(None, "cuda") == kill and asked("wait", "cuda") == 0
    assert asked(None, "cpu") == asked(None, None) == 0
    for wrong in ("", "Kill", 1, True):
        with pytest.raises(InvalidArgument, match=r"on_fence: .*allowed: wait, kill"):
            asked(wrong, "cuda")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="on_fence: 'kill' given; allowed: wait, on the CPU"):
        _buffer(on_fence="kill")
    monkeypatch.setenv("MOEWIRE_ON_FENCE", "stop")
    with pytest.raises(InvalidArgument, match="MOEWIRE_ON_FENCE: 'stop' given"):
        _buffer()


def test_bytes_have_to_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DRIVER_VARIABLE, _NOWHERE)
    with pytest.raises(InvalidArgument, match="num_ep_buffer_bytes: 0 given"):
        _buffer(0, device="cuda")


@pytest.mark.all
def test_one_device_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DRIVER_VARIABLE, str(emulator.driver()))
    with pytest.raises(NoDeviceError, match="device 1 of 1"):
        _buffer(device="cuda:1")


def test_torch_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    with pytest.raises(NoDeviceError, match=r"torch .* is built without CUDA"):
        torch_cuda.TorchCuda(0)


def test_tensors_of_another_device_are_refused() -> None:
    x = torch.empty((1, 128), dtype=torch.bfloat16, device="meta")
    topk_idx = torch.zeros((1, 1), dtype=torch.int64)
    with (
        _buffer() as buffer,
        pytest.raises(InvalidArgument, match="device meta given; allowed: device cpu"),
    ):
        buffer.dispatch(x, topk_idx, None, 1, 1, -1)


@pytest.mark.parametrize(
    ("available", "asked", "chosen"),
    [
        (False, None, "cpu"),
        (True, None, "cuda:3"),
        (True, "cpu", "cpu"),
        (True, "cuda:1", "cuda:1"),
        (False, "cuda", "cuda"),
    ],
)
def test_where_clients_of_gpu_libraries_are(
    monkeypatch: pytest.MonkeyPatch, available: bool, asked: str | None, chosen: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert torch_cuda.chosen(asked) == chosen
    assert torch_cuda.ordinal_of(None) == (3 if available else 0)
    assert torch_cuda.ordinal_of(5) == 5


@pytest.mark.parametrize("asks", [True, False], ids=["range", "no range"])
def test_the_side_stream_has_the_greatest_priority(
    monkeypatch: pytest.MonkeyPatch, asks: bool
) -> None:
    class Stream:
        """torch's: it takes the nearest of the priorities that there are."""

        def __init__(self, device: torch.device, priority: int = 0) -> None:
            self.device, self.asked, self.priority = device, priority, max(-5, min(0, priority))

    inside: list[torch.device] = []

    def current(device: torch.device) -> nullcontext[None]:
        inside.append(device)
        return nullcontext()

    if asks:  # of the current device: the least, and the greatest
        monkeypatch.setattr(Stream, "priority_range", staticmethod(lambda: (0, -5)), raising=False)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "device", current)
    monkeypatch.setattr(torch.backends, "cuda", SimpleNamespace(is_built=lambda: True))
    stream = torch_cuda.TorchCuda(2).side()
    assert (stream.device, stream.priority) == (torch.device("cuda:2"), -5)
    assert stream.asked == -5 if asks else -(2**31) < stream.asked < -1024
    assert inside == ([torch.device("cuda:2")] if asks else [])


@pytest.mark.parametrize("numbers", [True, False])
def test_the_current_stream(monkeypatch: pytest.MonkeyPatch, numbers: bool) -> None:
    """The thread's at every call, and one object as long as it is that."""
    current = 0

    class Stream:
        def __init__(self) -> None:
            self.cuda_stream = current

    asked = []

    def now(device: torch.device) -> Stream:
        asked.append(device)
        return Stream()

    monkeypatch.setattr(torch.cuda, "current_stream", now)
    monkeypatch.setattr(torch.backends, "cuda", SimpleNamespace(is_built=lambda: True))
    number = (lambda ordinal: current + 0 * ordinal) if numbers else None
    monkeypatch.setattr(torch_cuda, "_current_number", number)
    place = torch_cuda.TorchCuda(1)
    turns = [0, 0, 7, 7, 0, *range(200), 7]
    for turn in turns:
        current = turn
        assert place.handle(place.stream()) == turn
    first, again = place.stream(), place.stream()
    assert (first is again) == numbers
    assert set(asked) == {torch.device("cuda:1")}
    assert len(place._streams) <= (torch_cuda._MAX_STREAMS if numbers else 0)
    assert (len(asked) < len(turns)) == numbers
