"""examples/cuda_layer.py over the given emulated driver, as torchrun starts it.

torch's own operations are not part of the emulator's graphs. So the experts return their input, in
the example and in its reference; everything else is the example's.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.emulated import Emulated
from harness.on_cuda import current_device

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "cuda_layer.py"


class Graph:
    """``torch.cuda.CUDAGraph``; a replay is over when it returns."""

    place: Emulated

    def replay(self) -> None:
        self.place.replay(self.number, self.place.stream())
        self.place.synchronize()

    def __del__(self) -> None:
        self.place.destroy(self.number)

    number: int


@contextmanager
def _recorded(graph: Graph, **_: Any) -> Iterator[None]:
    """``torch.cuda.graph``: on a stream of its own."""
    place, stream = graph.place, graph.place.side()
    with place.on(stream), place.captured(stream) as graphs:
        yield
    (graph.number,) = graphs


def _example() -> Any:
    spec = importlib.util.spec_from_file_location("cuda_layer", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(driver: str) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        current_device(driver, folder, by_default=False) as place,
    ):
        wait = place.synchronize_all
        place.synchronize_all = lambda: place.recording() or wait()
        Graph.place = place
        for name, fake in {
            "is_available": lambda: True,
            "device_count": lambda: 1,
            "set_device": lambda ordinal: None,
            "CUDAGraph": Graph,
            "graph": _recorded,
        }.items():
            setattr(torch.cuda, name, fake)
        torch.backends.cuda.is_built = lambda: True
        example = _example()
        example.experts = lambda rows, weights: rows
        example.main()
        place.forget()
        left = [line for line in place.left() if not line.startswith(("streams", "events"))]
        assert left == ["references to the context left: 1"], left  # that of the stand-in itself


if __name__ == "__main__":
    main(sys.argv[1])
