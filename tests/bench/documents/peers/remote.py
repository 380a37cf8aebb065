"""A peer in processes of its own, one beside each rank, led through a Unix socket.

Its process reads the workload from a file, then obeys: each order is a letter and the time at
which to begin, each answer when it began and ended, by the clock that all processes share. A
process that waits for an order sleeps, so it does not affect other measurements.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from moewire.bench.peers import Unavailable
from moewire.bench.workload import Workload

_ORDER = struct.Struct("=8sd")
_ANSWER = struct.Struct("=dd")
_HEAD = struct.Struct("=8q")
_CONNECT_SECONDS = 120.0
_ANSWER_SECONDS = 300.0


def write_workload(work: Workload, path: Path) -> None:
    """What a peer's process needs to know of its rank's share."""
    num_topk = work.topk_idx.shape[1]
    head = (work.rank, work.num_ranks, work.num_tokens, work.hidden)
    rest = (work.num_experts, num_topk, int(work.fp8), 0)
    parts = [work.topk_idx, work.weights, work.x.view(torch.int16)]
    with path.open("wb") as file:
        file.write(_HEAD.pack(*head, *rest))
        for part in parts:
            file.write(part.contiguous().numpy().tobytes())


def read_workload(path: Path) -> Workload:
    """The inverse, for peers in Python; ``routing`` is of this rank only."""
    data = bytearray(path.read_bytes())
    rank, ranks, tokens, hidden, experts, topk, fp8, _ = _HEAD.unpack_from(data)
    at, parts = _HEAD.size, []
    sizes = ((tokens, topk), (tokens, topk), (tokens, hidden))
    kinds = (torch.int64, torch.float32, torch.bfloat16)
    for size, kind in zip(sizes, kinds, strict=True):
        count = size[0] * size[1]
        parts.append(torch.frombuffer(data, dtype=kind, count=count, offset=at).view(size))
        at += count * kind.itemsize
    routing = torch.full((ranks, tokens, topk), -1, dtype=torch.int64)
    routing[rank] = parts[0]
    return Workload(rank, ranks, experts, bool(fp8), parts[2], parts[1], routing)


class Remote:
    """This rank's end of a peer."""

    remote = True

    def __init__(self, name: str, work: Workload, folder: str) -> None:
        self.name, self.version, self.tolerance = name, "", 0.0
        self._shape = tuple(work.x.shape)
        base = Path(folder) / name
        self.prefix = str(base)
        self._out = Path(f"{base}-{work.rank}.out")
        write_workload(work, Path(f"{base}-{work.rank}.work"))
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{base}-{work.rank}.sock")
        self._listener.listen(1)
        self._link: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._said = tempfile.TemporaryFile()  # noqa: SIM115, closed with the peer

    def start(self, command: list[str], environment: dict[str, str]) -> None:
        """Starts the peer's process, or the launcher of all of them."""
        try:
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            raise Unavailable(f"cannot start {command[0]}: {error}") from error

    def accept(self) -> None:
        """Waits until the process is there; raises with what it said where it is not."""
        deadline = time.monotonic() + _CONNECT_SECONDS
        self._listener.settimeout(0.2)
        while self._link is None:
            with contextlib.suppress(TimeoutError):
                self._link = self._listener.accept()[0]
                self._link.settimeout(_ANSWER_SECONDS)
            ended = self._process is not None and self._process.poll() is not None
            if self._link is None and (ended or time.monotonic() > deadline):
                raise Unavailable(f"its process did not connect: {self._last_words()}")

    def _last_words(self) -> str:
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        return " / ".join(lines[-3:]) or "it said nothing"

    def dispatch(self, begin: float = 0.0) -> tuple[float, float]:
        """When it began and ended."""
        return self._order(b"dispatch", begin)

    def compute(self, begin: float = 0.0) -> tuple[float, float]:
        """The identity expert."""
        return self._order(b"compute", begin)

    def combine(self, begin: float = 0.0) -> tuple[float, float]:
        """When it began and ended."""
        return self._order(b"combine", begin)

    def pairs(self, begin: float) -> tuple[float, float]:
        """Pairs without rest; when the measured ones began and ended."""
        return self._order(b"pairs", begin)

    def result(self) -> torch.Tensor:
        """bf16 [T, H], of the last combine."""
        self._order(b"write", 0.0)
        bits = np.fromfile(self._out, dtype=np.int16)
        return torch.from_numpy(bits).view(torch.bfloat16).view(self._shape)

    def _order(self, word: bytes, begin: float) -> tuple[float, float]:
        assert self._link is not None
        try:
            self._link.sendall(_ORDER.pack(word, begin))
            answer = self._link.recv(_ANSWER.size, socket.MSG_WAITALL)
        except OSError as error:
            raise RuntimeError(f"{self.name}: {error}: {self._last_words()}") from error
        if len(answer) != _ANSWER.size:
            raise RuntimeError(f"{self.name} ended while it was measured: {self._last_words()}")
        started, ended = _ANSWER.unpack(answer)
        return started, ended

    def close(self) -> None:
        """Ends the process."""
        if self._link is not None:
            with contextlib.suppress(OSError):
                self._link.sendall(_ORDER.pack(b"quit", 0.0))
            self._link.close()
        self._listener.close()
        if self._process is not None:
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._said.close()


def serve(prefix: str, rank: int, make: Callable[[Workload], Any]) -> None:
    """The other end, for peers in Python. ``make(work)`` gives the peer that does the work."""
    work = read_workload(Path(f"{prefix}-{rank}.work"))
    peer = make(work)
    link = socket.socket(socket.AF_UNIX)
    link.connect(f"{prefix}-{rank}.sock")
    while True:
        order = link.recv(_ORDER.size, socket.MSG_WAITALL)
        word, begin = _ORDER.unpack(order) if len(order) == _ORDER.size else (b"quit", 0.0)
        name = word.rstrip(b"\0").decode()
        if name == "quit":
            return
        if name == "write":
            bits = peer.result().view(torch.int16).numpy()
            bits.tofile(f"{prefix}-{rank}.out")
            link.sendall(_ANSWER.pack(0.0, 0.0))
            continue
        time.sleep(max(0.0, begin - time.perf_counter()))
        started = time.perf_counter()
        getattr(peer, name)()
        link.sendall(_ANSWER.pack(started, time.perf_counter()))
