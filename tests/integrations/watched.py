"""Programs that a test starts, watches by what they print, and ends."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 120


class Program:
    """One process that prints into a file; ``inside``: a command that starts it as its child."""

    def __init__(
        self,
        command: list[str],
        output: Path,
        variables: Mapping[str, str],
        inside: tuple[str, ...] = (),
    ) -> None:
        self._output, self._inside = output, inside
        self._from = output.stat().st_size if output.exists() else 0
        environment = {**os.environ, "PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1"}
        with output.open("a") as file:
            self.process = subprocess.Popen(
                [*inside, *command],
                env={**environment, **variables},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def said(self) -> str:
        """All that it has printed."""
        return self._output.read_bytes()[self._from :].decode(errors="replace")

    def until(self, pattern: str) -> str:
        """Waits until it has printed the pattern; its first group. Fails if it ends before."""

        def found() -> re.Match[str] | None:
            return re.search(pattern, self.said(), re.MULTILINE)

        wait(lambda: found() is not None or self.process.poll() is not None, self.said)
        match = found()
        assert match, f"ended with {self.process.returncode} without {pattern!r}\n{self.said()}"
        return match[match.re.groups and 1]

    def send(self, number: int) -> None:
        """Sends a signal to the program itself."""
        one = psutil.Process(self.process.pid)
        target = one.children()[0] if self._inside else one
        target.send_signal(number)

    def ended(self, seconds: float = SECONDS) -> int:
        """Waits for its end; the exit status."""
        wait(lambda: self.process.poll() is not None, self.said, seconds)
        return self.process.returncode

    def end(self) -> None:
        """Ends it and its children, whatever they do."""
        if self.process.poll() is None:
            one = psutil.Process(self.process.pid)
            for process in [*one.children(recursive=True), one]:
                process.kill()
        self.process.wait()


def wait(done: Callable[[], bool], said: Callable[[], str], seconds: float = SECONDS) -> None:
    """Until it is done; fails with what was said if that takes too long."""
    until = time.monotonic() + seconds
    while not done():
        if time.monotonic() > until:
            pytest.fail(f"nothing more after {seconds} s\n{said()}")
        time.sleep(0.05)


def python_path() -> str:
    """Where what this process imports lies, for programs that it starts."""
    import moewire

    paths = [str(Path(moewire.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(path for path in paths if path)
