"""Ranks in an engine's own environment: one process imports the engine, then forks every launch.

Run as a program by the engine's interpreter, it reads one launch per line from its standard
input and answers each with one line. The class is the other end.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
_START_SECONDS = 180
_MARK = "answer: "  # engines print


class EngineServer:
    """Launches ranks. ``preload`` is a module beside this file, imported before the forks."""

    def __init__(self, python: Path, preload: str, *paths: Path) -> None:
        self._python = str(python)
        inherited = os.environ.get("PYTHONPATH")
        places = [*map(str, [HERE, *paths]), *filter(None, [inherited])]
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(places),
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore",
        }
        self._process = subprocess.Popen(
            [self._python, str(Path(__file__)), preload],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # select knows nothing of what a buffer of Python's holds
            env=self._environment,
        )
        self._read = b""  # of the lines that were not asked for yet
        self._answer(_START_SECONDS)

    def run(
        self,
        size: int,
        job: str,
        *arguments: Any,
        timeout: float = 120.0,
        group: bool = True,
        **environment: str,
    ) -> list[Any]:
        """As ``integration_ranks.run``, with these variables; plain values in and out."""
        launch = {"size": size, "job": job, "arguments": arguments, "timeout": timeout}
        launch |= {"group": group, "environment": environment}
        assert self._process.stdin is not None
        _write(self._process.stdin.fileno(), json.dumps(launch).encode() + b"\n")
        answer = self._answer(timeout + 30)
        if "failure" in answer:
            raise AssertionError(answer["failure"])
        return list(answer["results"])

    def program(self, *arguments: str, **environment: str) -> str:
        """What the engine's interpreter prints when it is started by itself."""
        return subprocess.run(
            [self._python, *arguments],
            check=True,
            env={**self._environment, **environment},
            stdout=subprocess.PIPE,
            text=True,
            timeout=_START_SECONDS,
        ).stdout

    def _answer(self, seconds: float) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while True:
            line = self._line(deadline)
            if line is None:
                self.close()
                raise AssertionError(f"the engine's process ended, or took over {seconds:.0f} s")
            if line.startswith(_MARK):
                answer: dict[str, Any] = json.loads(line.removeprefix(_MARK))
                return answer

    def _line(self, deadline: float) -> str | None:
        """The next one; None if there is none until the deadline, or none any more."""
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._read:
            left = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([pipe], [], [], left)
            more = os.read(pipe, 1 << 16) if ready else b""
            if not more:
                return None
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        return line.decode(errors="replace")

    def close(self) -> None:
        """Ends it. Idempotent."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def _write(pipe: int, data: bytes) -> None:
    while data:
        data = data[os.write(pipe, data) :]


def _serve(preload: str) -> None:
    import integration_ranks

    importlib.import_module(preload)
    _say({})
    for line in sys.stdin:
        launch = json.loads(line)
        before = dict(os.environ)
        os.environ.update(launch["environment"])
        try:
            arguments = launch["arguments"]
            options = {name: launch[name] for name in ("timeout", "group")}
            results = integration_ranks.run(
                launch["size"], launch["job"], *arguments, start="fork", **options
            )
            _say({"results": results})
        except AssertionError as error:
            _say({"failure": str(error)})
        finally:
            os.environ.clear()
            os.environ.update(before)


def _say(answer: dict[str, Any]) -> None:
    print(_MARK + json.dumps(answer), flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1])
