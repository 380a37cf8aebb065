"""Jobs over the emulated device: memory of closed buffers, and what keeps it in place."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

import moewire
from moewire._cuda.engine import Cuda
from moewire._native import deferred_log

from .emulated import Emulated
from .jobs_cuda import TIMEOUT_US, Make, dispatch, inputs, small
from .jobs_cuda_observe import until
from .jobs_input import expect
from .jobs_oracle import size_for


def outlives(place: Emulated, make: Make, seed: int, name: str) -> torch.Tensor:
    """The only tensor over the memory of a closed buffer."""
    case = small(seed, 1)
    with make(size_for([case]), device="cuda", prefix=name) as buffer:
        rows: torch.Tensor = dispatch(place, buffer, case, 0, {}).recv_x
    gc.collect()
    assert workspaces(place), "the memory of this view is released"
    return rows


def workspaces(place: Emulated) -> list[str]:
    """The buffers' memory that is allocated."""
    return [line for line in place.left() if "handles of memory" in line or "allocation" in line]


class Said(list[str]):
    """Lines of the log."""

    def __init__(self) -> None:
        self.by: set[int | None] = set()  # threads

    def add(self, record: logging.LogRecord) -> None:
        self.by.add(record.thread)
        self.append(record.getMessage())


@contextmanager
def warnings_of_moewire() -> Iterator[Said]:
    """The lines that are logged meanwhile."""
    found = Said()
    handler = logging.Handler(logging.WARNING)
    handler.emit = found.add  # type: ignore[method-assign]
    logger = logging.getLogger("moewire")
    logger.addHandler(handler)
    try:
        yield found
    finally:
        logger.removeHandler(handler)


def cannot_be_released(place: Emulated, make: Make, seed: int, name: str) -> None:
    """A closed buffer's memory that is there although its last tensor is gone."""
    rows = outlives(place, make, seed, name)
    with warnings_of_moewire() as said:
        place.fail("cuCtxPushCurrent_v2", 0)
        del rows
        gc.collect()
        assert threading.get_ident() not in said.by, "logged in the middle of a collection"
        deferred_log.flush()
        until(lambda: bool(said))  # a thread of an earlier buffer's may be at it
    assert workspaces(place), "the release did not fail"
    assert len(said) == 1 and "not be released" in said[0] and "out of memory" in said[0], said


def not_retried_in_a_collection(place: Emulated, make: Make, rank: int, seed: int) -> None:
    """A collection does not wait for a device that others wait for, nor in their captures."""
    tensor = outlives(place, make, seed, "tensor")
    buffer = make(size_for([small(seed, 1)]), device="cuda", prefix="buffer")
    before = workspaces(place)
    cannot_be_released(place, make, seed, "x")
    kept = workspaces(place)
    with warnings_of_moewire() as said:
        del tensor
        gc.collect()
        assert before != workspaces(place) != kept, "what has leaked was tried again, or nothing"
        del buffer
        gc.collect()
        assert workspaces(place), "what has leaked was tried again"
        make(size_for([small(seed, 1)]), device="cuda", prefix="last").close()
    assert not workspaces(place) and not said, (place.left(), said)


def retried_at_a_close(place: Emulated, make: Make, rank: int, seed: int) -> None:
    """The same after the next close, and nothing is released twice."""
    cannot_be_released(place, make, seed, "x")
    other = make(size_for([small(seed, 1)]), device="cuda", prefix="other")
    with warnings_of_moewire() as said:
        other.close()
    assert not workspaces(place) and not said, (place.left(), said)
    with warnings_of_moewire() as said:
        make(size_for([small(seed, 1)]), device="cuda", prefix="last").close()
    assert not workspaces(place) and not said, (place.left(), said)


def dropped_in_a_capture(place: Emulated, make: Make, rank: int, seed: int) -> None:
    """Memory is freed with its last tensor while a stream is captured; the capture goes on."""
    rows, stream = outlives(place, make, seed, "x"), place.side()
    with place.on(stream), place.captured(stream) as graph:
        del rows
        gc.collect()
        assert not workspaces(place), place.left()
    place.destroy(graph[0])


def closed_behind(buffer: moewire.Buffer, owner: object, name: str) -> None:
    """Closes the buffer as soon as the method has returned, as another thread may."""
    whole = getattr(owner, name)

    def then_close(*args: object) -> object:
        setattr(owner, name, whole)
        result = whole(*args)
        buffer.close()
        gc.collect()
        return result

    setattr(owner, name, then_close)


def closed_by_another(place: Emulated, make: Make, rank: int, seed: int) -> None:
    """Rows, and rooms for outputs, that are made while a buffer is closed keep its memory."""
    case = small(seed, 1)
    x, topk = inputs(place, case, 0)
    given = (x, topk, None, case.num_max, case.num_experts, TIMEOUT_US, False)
    buffer = make(size_for([case]), device="cuda", prefix="rows")
    assert isinstance(buffer.runtime, Cuda)
    closed_behind(buffer, buffer.runtime.views, "own")
    rows = buffer.dispatch(*given)[0]
    gc.collect()
    assert workspaces(place), "nobody keeps the memory of these rows"
    del rows
    gc.collect()
    assert not workspaces(place), place.left()
    buffer = make(size_for([case]), device="cuda", prefix="outputs")
    received = buffer.dispatch(*given)
    closed_behind(buffer, buffer.runtime, "combine_buffer")
    room = buffer.get_next_combine_buffer(received[2])
    del received
    gc.collect()
    assert workspaces(place), "nobody keeps the memory of this room"
    del room
    gc.collect()
    assert not workspaces(place), place.left()


def closed_before_views(place: Emulated, make: Make, rank: int, seed: int) -> None:
    """A call that finds no memory any more says so; the number of rows needs none."""
    case = small(seed, 1)
    x, topk = inputs(place, case, 0)
    buffer = make(size_for([case]), device="cuda")
    weights = place.put(torch.ones_like(topk.cpu(), dtype=torch.float32))
    received = buffer.dispatch_flat(x, topk, weights, case.num_max, case.num_experts)
    received.forget()
    assert isinstance(buffer.runtime, Cuda)
    buffer.runtime.views.close()  # as the beginning of a close
    assert received.num_recv_tokens == len(x)
    closed_behind(buffer, buffer.runtime, "combine_buffer")
    expect(moewire.ClosedError, lambda: buffer.get_next_combine_buffer(received.handle))
    assert not workspaces(place), place.left()


def forgotten_while_filled(place: Emulated, make: Make, rank: int, seed: int) -> None:
    """Tensors dropped while another thread makes them keep nothing alive, and miss nothing."""
    case = small(seed, 1)
    x, topk = inputs(place, case, 0)
    weights = place.put(torch.ones_like(topk.cpu(), dtype=torch.float32))
    with make(size_for([case]), device="cuda") as buffer:
        assert isinstance(buffer.runtime, Cuda)
        views, on, owned = buffer.runtime.views, place.on, list[bool]()
        view = views.view

        def spy(address: int, shape: tuple[int, ...], dtype: torch.dtype, owner: Any) -> Any:
            owned.append(owner is not None)
            return view(address, shape, dtype, owner)

        def forget_and_go_on(stream: Any) -> Any:
            place.on = on  # type: ignore[method-assign]
            received.forget()
            return on(stream)

        received = buffer.dispatch_flat(x, topk, weights, case.num_max, case.num_experts)
        views.view = spy  # type: ignore[method-assign]
        place.on = forget_and_go_on  # type: ignore[method-assign]
        assert received.num_recv_tokens == len(x)
        del views.view
        assert all(owned), "a view holds nothing"
        assert received._rows.tensors is None, "who dropped the tensors has them again"
    gc.collect()
    assert not workspaces(place), place.left()
