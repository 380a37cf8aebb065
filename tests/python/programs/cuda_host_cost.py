"""What a dispatch and a combine on CUDA cost the thread that calls them. Prints one JSON object.

    python tests/python/programs/cuda_host_cost.py
    python tests/python/programs/cuda_host_cost.py --emulator emulator.so

There is one rank, which waits for no other. The time is that of the calls, which launch and return.
Between them the program waits for the device. Times are medians. With an emulated driver launches
do nothing (EMULATOR_NULL), and torch's answers about streams cost nothing: only Moewire's part is
left.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.cuda_device import CudaDevice
from harness.emulated import Emulated, Stream
from harness.jobs_cuda import use, use_device
from moewire import Buffer
from moewire._cuda import torch_cuda

TOKENS, HIDDEN, TOPK, EXPERTS = 128, 7168, 8, 32
NO_CUDA = 3
NAMES = (
    "dispatch, sends only",
    "its hook",
    "combine",
    "dispatch, both phases",
    "release of a handle",
)


class Free(Emulated):
    """Answers to what torch is asked for, at no cost."""

    def __init__(self, driver: Path, strict: bool = True) -> None:
        super().__init__(driver, strict)
        self._current = self.side()

    def stream(self) -> Stream:
        return self._current

    like = staticmethod(torch.empty_like)

    def capturing(self, stream: Stream) -> bool:
        return False

    def recording(self) -> bool:
        return False


@contextmanager
def device(driver: str) -> Iterator[CudaDevice | Free]:
    """Behind this process's buffers: torch's, or the emulated one of a driver."""
    if not driver:
        yield use_device()
        return
    os.environ["EMULATOR_NULL"] = "1"  # read when the driver is opened
    with tempfile.TemporaryDirectory() as folder:
        use(driver, folder)
        place = Free(Path(driver), strict=False)  # what calls cost, not where tensors are
        torch_cuda.place = lambda ordinal: place
        yield place


def timed(into: list[int], call: Callable[[], Any]) -> Any:
    begin = time.perf_counter_ns()
    result = call()
    into.append(time.perf_counter_ns() - begin)
    return result


def measure(place: CudaDevice | Free, times: int) -> dict[str, float]:
    """Medians by call, in microseconds."""
    x = place.put(torch.zeros((TOKENS, HIDDEN), dtype=torch.bfloat16))
    topk = place.put(torch.arange(TOPK).repeat(TOKENS, 1))
    weights = place.put(torch.ones((TOKENS, TOPK)))
    num_bytes = Buffer.get_ep_buffer_size_hint(TOKENS, HIDDEN, 1, EXPERTS)
    found: dict[str, list[int]] = {}
    calls = [found.setdefault(name, []) for name in NAMES]
    given = (x, topk, None, TOKENS, EXPERTS, -1, False)
    with Buffer.from_store(dist.HashStore(), 0, 1, num_bytes, device="cuda") as buffer:
        for _ in range(times):
            sent = timed(calls[0], lambda: buffer.dispatch(*given, return_recv_hook=True))
            timed(calls[1], sent[4])
            y = buffer.get_next_combine_buffer(sent[2])
            back = (y, topk, weights, None, -1, sent[2], True)
            timed(calls[2], lambda back=back: buffer.combine(*back))
            whole = timed(calls[3], lambda: buffer.dispatch(*given))
            timed(calls[4], whole[2].release)
            place.synchronize()
    return {name: round(statistics.median(ns) / 1e3, 2) for name, ns in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--emulator", default="", help="an emulated driver, instead of a device")
    parser.add_argument("--times", type=int, default=2000)
    args = parser.parse_args()
    if not args.emulator and not torch.cuda.is_available():
        print(f"torch {torch.__version__} finds no CUDA device", file=sys.stderr)
        return NO_CUDA
    with device(args.emulator) as place:
        result = {
            "what": "Python: one rank, calls that launch and return",
            "on": "launches that do nothing" if args.emulator else torch.cuda.get_device_name(0),
            "shape": f"T={TOKENS} H={HIDDEN} K={TOPK} E={EXPERTS}",
            "calls_us": measure(place, args.times),
        }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
