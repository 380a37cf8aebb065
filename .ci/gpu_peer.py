"""Times DeepEP's low-latency kernels, which are fetched outside the tree. Prints one JSON object.

    python .ci/gpu_peer.py FOLDER [--fp8]

FOLDER is where `import deep_ep` finds it, built. It has one rank per device, so here it has one:
its times stand beside ours with one rank. As in gpubench everything is launched behind a gate of
copies, before the device begins, and the best of some runs counts.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

OPS, RUNS = 10, 10
MAX_COPIES = 1024


class Clock:
    """Marks on the device's stream, behind a gate; those of the host where there is no device."""

    def __init__(self, on: str) -> None:
        self._cuda = on == "cuda"
        self._copies = 8
        self._gate = torch.empty((2, 1 << 27), dtype=torch.uint8, device=on) if self._cuda else None

    def shut(self) -> None:
        for _ in range(self._copies if self._gate is not None else 0):
            self._gate[1].copy_(self._gate[0])  # type: ignore[index]

    def mark(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def early(self, first: Any) -> bool:
        """Whether the gate had opened before everything was launched: then it is made longer."""
        if not self._cuda or not first.query() or self._copies >= MAX_COPIES:
            return False
        self._copies *= 2
        return True

    def done(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()

    def us(self, begin: Any, end: Any) -> float:
        return begin.elapsed_time(end) * 1e3 if self._cuda else (end - begin) * 1e6

    @property
    def launches_counted(self) -> bool:
        return self._copies >= MAX_COPIES


class Peer:
    """A group of one rank, and what it exchanges."""

    def __init__(self, module: Any, args: argparse.Namespace) -> None:
        self._args = args
        torch.manual_seed(1)
        shape = (args.tokens, args.hidden)
        self.x = torch.randn(shape, dtype=torch.bfloat16, device=args.on)
        scores = torch.rand((args.tokens, args.experts), device=args.on)
        self.topk = scores.topk(args.topk, dim=1)[1]
        self.weights = torch.rand((args.tokens, args.topk), device=args.on)
        group = dist.group.WORLD
        num_bytes = module.Buffer.get_low_latency_rdma_size_hint(*shape, 1, args.experts)
        self._buffer = module.Buffer(
            group, num_rdma_bytes=num_bytes, low_latency_mode=True, num_qps_per_rank=args.experts
        )

    def dispatch(self) -> tuple[Any, ...]:
        a = self._args
        return self._buffer.low_latency_dispatch(  # type: ignore[no-any-return]
            self.x, self.topk, a.tokens, a.experts, use_fp8=a.fp8,
            async_finish=False, return_recv_hook=False,
        )  # fmt: skip

    def combine(self, y: torch.Tensor, handle: Any) -> torch.Tensor:
        given = (y, self.topk, self.weights, handle)
        out: torch.Tensor = self._buffer.low_latency_combine(*given, async_finish=False)[0]
        return out

    def check(self) -> torch.Tensor:
        """Counts, and sums of rows that come back as they are; gives outputs to combine."""
        rows, count, handle = self.dispatch()[:3]
        if (n := int(count.sum())) != self.topk.numel():
            raise SystemExit(f"{n} rows were received, not {self.topk.numel()}")
        rows = rows[0] if self._args.fp8 else rows
        y = rows.to(torch.bfloat16) if self._args.fp8 else rows.clone()
        out = self.combine(y, handle)
        want = self.x.float() * self.weights.sum(dim=1, keepdim=True)
        if not self._args.fp8 and not torch.allclose(out.float(), want, rtol=0.02, atol=0.02):
            raise SystemExit("sums are wrong")
        return y


def once(peer: Peer, y: torch.Tensor, clock: Clock) -> tuple[float, float]:
    """The means of some operations, in microseconds."""
    while True:
        clock.done()
        clock.shut()
        marks = [clock.mark()]
        for _ in range(OPS):
            handle = peer.dispatch()[2]
            marks.append(clock.mark())
            peer.combine(y, handle)
            marks.append(clock.mark())
        early = clock.early(marks[0])
        clock.done()
        if not early:
            break
    times = [clock.us(*pair) for pair in itertools.pairwise(marks)]
    return sum(times[::2]) / OPS, sum(times[1::2]) / OPS


def version(folder: Path) -> str:
    """What there is to know of it: its version and commit."""
    try:
        number = importlib.metadata.version("deep_ep")
    except importlib.metadata.PackageNotFoundError:
        number = "of no version"
    words = ["git", "-C", str(folder), "describe", "--always", "--dirty"]
    commit = subprocess.run(words, capture_output=True, text=True).stdout.strip()
    return f"{number}, {f'commit {commit}' if commit else 'commit unknown'}"


def measure(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    import deep_ep

    dist.init_process_group(
        "nccl" if args.on == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1
    )
    peer, clock = Peer(deep_ep, args), Clock(args.on)
    y = peer.check()
    runs = [once(peer, y, clock) for _ in range(RUNS)]
    return {
        "what": f"DeepEP {version(folder)}", "ranks": 1, "tokens_per_rank": args.tokens,
        "hidden": args.hidden, "topk": args.topk, "experts": args.experts, "fp8": args.fp8,
        "peer_us": {"dispatch": min(d for d, _ in runs), "combine": min(c for _, c in runs)},
        "launches_counted": clock.launches_counted,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fp8", action="store_true")
    parser.add_argument("--on", default="cuda", help="cpu: for a test, with a module of its own")
    for name, value in (("tokens", 128), ("hidden", 7168), ("topk", 8), ("experts", 256)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    sys.path.insert(0, str(args.folder))
    print(json.dumps(measure(args.folder, args)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
