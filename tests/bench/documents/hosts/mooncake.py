"""A peer: Mooncake's transfer engine over TCP, in a process of its own on each host.

It comes from the wheel ``mooncake-transfer-engine-non-cuda``. Its pool of connections, off by
default, is on here, because it is faster. It has as many lanes per peer as the others have
connections. The wheel is linked to libibverbs even for sockets alone; if that is not installed,
``native/ibverbs.c`` stands in for it and reports no devices.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moewire.bench import compiler
from moewire.bench.peers import Unavailable
from moewire.errors import MoewireError

from .. import SOURCES
from ..peers import venvs
from ..peers.mooncake import PACKAGE, VERSION
from .cells import Cell
from .memory import Memory, mapped
from .place import Place

_SECONDS = 60.0


class Mooncake:
    """One process for each number of connections."""

    name = "mooncake"
    delivers = True

    def __init__(self, place: Place, memory: Memory, connections: Sequence[int]) -> None:
        self._engines: dict[int, _Engine] = {}
        root = venvs.installed(PACKAGE, VERSION)
        try:
            for number in connections:
                self._engines[number] = _Engine(root, place.address, memory, number)
        except Unavailable:
            self.close()
            raise

    def places(self) -> dict[int, tuple[str, int]]:
        """By connections: the engine's name, and where its memory lies."""
        return {number: engine.place for number, engine in self._engines.items()}

    def reach(self, places: dict[int, tuple[str, int]]) -> None:
        """Host 0 learns where host 1's engines are."""
        for number, engine in self._engines.items():
            engine.peer = places[number]

    def write(self, cell: Cell) -> float:
        """Host 0's part; seconds."""
        return self._engines[cell.connections].write(cell)

    def serve(self, cell: Cell) -> None:
        """Host 1 is written to, and does nothing."""

    def processor_seconds(self) -> float:
        """Used until now by its processes; their threads live as long as they do."""
        return sum(engine.processor_seconds() for engine in self._engines.values())

    def close(self) -> None:
        """Ends the processes."""
        for engine in self._engines.values():
            engine.close()


class _Engine:
    """A process, which answers a line to each line."""

    def __init__(self, root: Path, address: str, memory: Memory, connections: int) -> None:
        self.peer = ("", 0)
        words = [memory.path, str(memory.num_bytes), address]
        self._process = subprocess.Popen(
            [str(root / "bin" / "python"), "-m", __name__, *words],
            env=environment(root, connections),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            name, at = self._answer()
        except MoewireError as error:
            self.close()
            raise Unavailable(f"its transfer engine did not start: {error}") from error
        self.place = (str(name), int(at))

    def write(self, cell: Cell) -> float:
        """Seconds, by the process's own clock."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps([*self.peer, *cell]).encode() + b"\n")
            self._process.stdin.flush()
        return float(self._answer()[0])

    def processor_seconds(self) -> float:
        threads = Path(f"/proc/{self._process.pid}/task").glob("*/schedstat")
        return sum(int(thread.read_text().split()[0]) for thread in threads) * 1e-9

    def _answer(self) -> list[Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise MoewireError(f"mooncake's process ended with status {self._process.wait()}")
        answer = json.loads(line)
        if isinstance(answer, str):
            raise MoewireError(f"mooncake: {answer}")
        return list(answer)

    def close(self) -> None:
        with self._process as process:  # ends with its standard input
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def environment(root: Path, connections: int) -> dict[str, str]:
    """Of processes that use sockets alone, so many to each peer."""
    more = {
        "MC_FORCE_TCP": "1",
        "MC_TCP_ENABLE_CONNECTION_POOL": "true",
        "MC_TCP_LANES_PER_PEER": str(connections),
        "MC_LOG_LEVEL": "ERROR",
    }
    try:
        ctypes.CDLL("libibverbs.so.1")
    except OSError:
        more["LD_LIBRARY_PATH"] = str(_stand_in().parent)
    return venvs.environment(root, **more)


def _stand_in() -> Path:
    """A folder's ``libibverbs.so.1``."""
    try:
        built = compiler.library(SOURCES / "ibverbs.c")
    except compiler.CompileError as error:
        raise Unavailable(f"it is linked to libibverbs.so.1, which is missing; {error}") from error
    link = built.with_name(f"{built.name}.lib") / "libibverbs.so.1"
    link.parent.mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError):
        link.symlink_to(built)
    return link


# ------------------------------------------------------------ the peer's process --


def _write(engine: Any, own: int, target: str, at: int, cell: Cell) -> float:
    size = cell.message_bytes
    begin = time.perf_counter()
    if cell.depth == 1:
        for _ in range(cell.num_messages):
            _check(engine.transfer_sync_write(target, own, at, size))
        return time.perf_counter() - begin
    # All at once is its fastest way; it starts as many as it likes.
    offsets = [number % cell.depth * size for number in range(cell.num_messages)]
    sources, places = ([base + offset for offset in offsets] for base in (own, at))
    _check(engine.batch_transfer_sync_write(target, sources, places, [size] * cell.num_messages))
    return time.perf_counter() - begin


def _check(status: int) -> None:
    if status != 0:
        raise RuntimeError(f"a write that was measured returned {status}")


def main(path: str, num_bytes: int, address: str) -> None:
    """Registers the memory and obeys until the input ends."""
    # What the library prints goes elsewhere.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(answer: object) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    try:
        engine = importlib.import_module("mooncake.engine").TransferEngine()
        memory, own = mapped(path, num_bytes)
        if engine.initialize(address, "P2PHANDSHAKE", "tcp", "") != 0:
            raise RuntimeError("initialize failed")
        if engine.register_memory(own, num_bytes) != 0:
            raise RuntimeError("register_memory failed")
        say([f"{address}:{engine.get_rpc_port()}", own])
        for line in sys.stdin:
            target, at, *words = json.loads(line)
            say([_write(engine, own, target, at, Cell(*words))])
        assert memory is not None
    except Exception as error:
        say(f"{type(error).__name__}: {error}")
    # Not through the destructors of a library that has threads.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
