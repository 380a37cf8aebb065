"""A server in memory that a command starts for itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ..errors import MoewireError

_SERVE = (
    *(sys.executable, "-m", "moewire", "store", "serve"),
    *("--listen", "127.0.0.1:0", "--capacity", "1GiB"),
)
_END_S = 20


class Child:
    """A ``moewire store serve`` in a process of its own, on loopback. A context manager.

    Args:
        folder: where its key is.
        protection: of its connections.

    Raises:
        MoewireError: it has not started.
    """

    def __init__(self, folder: str, protection: str) -> None:
        self.key = Path(folder) / "key"
        package = str(Path(__file__).resolve().parents[2])
        paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [*_SERVE, "--new-key", str(self.key), "--protection", protection],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()  # "... at ADDRESS", or nothing
        self.address = line.rpartition(" at ")[2].strip()
        if not self.address:
            self._end()
            raise MoewireError("the server for this run has not started: moewire store serve")

    @property
    def pid(self) -> int:
        return self._process.pid

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *exception: object) -> None:
        self._end()
