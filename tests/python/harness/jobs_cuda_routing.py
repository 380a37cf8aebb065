"""What routings on CUDA have that those on the CPU have not: streams, captures."""

from __future__ import annotations

import torch

import moewire

from . import jobs_routing
from .cuda_place import Place
from .jobs_cuda import Make
from .jobs_input import expect
from .member import Rank
from .on_cuda import current_device, folder_of
from .over_cuda import changed


def captured(place: Place, make: Make) -> None:
    """Refused while the stream records, before anything has happened; later on two streams."""
    stream, other = place.side(), place.side()
    ids = place.put(torch.zeros((3, 1), dtype=torch.int64))
    x = place.put(torch.arange(24.0).reshape(3, 8).bfloat16())
    with make(12 << 20, device="cuda") as buffer:
        with place.on(stream):
            routing = buffer.make_routing(ids, 1)
            with place.captured(stream) as graph:
                for call in (
                    lambda: buffer.make_routing(ids, 1),
                    lambda: buffer.scatter(routing, x),
                    lambda: buffer.gather(routing, x),
                ):
                    text = expect(moewire.UnsupportedError, call)
                    assert "before or after the capture" in text
        place.destroy(graph[0])
        with place.on(stream):
            rows = buffer.scatter(routing, x).rows
        with place.on(other):
            out, _ = buffer.gather(routing, rows)
        assert torch.equal(out.cpu(), x.cpu())
        place.synchronize()


def interrupted(rank: Rank, driver: str) -> None:
    """``jobs_routing.interrupted``, where nothing but the call itself waits."""
    folder = folder_of(rank.folder, rank.rank)
    with current_device(driver, folder, waiting=False) as place, changed():
        jobs_routing.interrupted(rank)
        place.synchronize_all()
