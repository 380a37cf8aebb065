"""A ``moewire store serve`` that is stopped and started again: of this program, or of the user."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

_SECONDS = 60.0
_LISTEN = "127.0.0.1:9900"  # what `moewire store serve` takes unless told otherwise


def package() -> Path:
    """The folder of the package ``moewire``: the installed one, or this repository's."""
    found = importlib.util.find_spec("moewire")
    if found is not None and found.origin is not None:
        return Path(found.origin).parent
    return Path(__file__).resolve().parents[1] / "python" / "moewire"


class Store:
    """A server of this machine. A context manager that stops what it has started itself.

    Args:
        command: what starts it; with ``--key-file``.
        folder: the working folder for it.
        key: its key file.
        running: the id of the process, if it runs already; then ``address`` is where.
    """

    def __init__(
        self, command: list[str], folder: Path, key: Path, running: int = 0, address: str = ""
    ) -> None:
        self._command = command
        self._folder = folder
        self._running = running
        self._process: subprocess.Popen[str] | None = None
        self.key = key
        self.address = address

    @classmethod
    def own(cls, folder: Path) -> Store:
        """A new one, with its blocks and its key in a folder."""
        key = folder / "store.key"
        command = [sys.executable, "-m", "moewire", "store", "serve", "--listen", "127.0.0.1:0"]
        command += ["--storage", "file", "--path", str(folder / "blocks"), "--capacity", "1GiB"]
        store = cls([*command, "--key-file", str(key)], folder, key)
        store._start([*command, "--new-key", str(key)])
        return store

    def restart(self) -> None:
        """Stops the process, and starts another one.

        Raises:
            SystemExit: it does not end, or does not start.
        """
        self.stop()
        self._start(self._command)

    def _start(self, command: list[str]) -> None:
        environment = {**os.environ, "PYTHONPATH": str(package().parent)}
        self._process = subprocess.Popen(
            command, cwd=self._folder, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()  # a server that cannot start ends
        where = re.search(r" at (\S+:\d+)$", line.strip())
        if where is None:
            raise SystemExit(f"the store has not started; it says {line!r}")
        self.address = where[1]

    def stop(self) -> None:
        """Ends it by SIGTERM. Idempotent."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(_SECONDS)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None
        elif self._running:
            os.kill(self._running, signal.SIGTERM)
            _wait_for_end(self._running)
            self._running = 0

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process is not None:
            self.stop()


def found(blocks: Path) -> Store:
    """The server that has a folder of blocks.

    Raises:
        SystemExit: none has it, or it was started in a way that this program cannot repeat.
    """
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            store = _of_process(entry, blocks.resolve())
            if store is not None:
                return store
    raise SystemExit(
        f"--blocks: no `moewire store serve` has {blocks} (fix: --path {blocks} there)"
    )


def _of_process(entry: Path, blocks: Path) -> Store | None:
    try:
        command = [os.fsdecode(word) for word in (entry / "cmdline").read_bytes().split(b"\0")[:-1]]
        folder = (entry / "cwd").resolve(strict=True)
    except OSError:  # it has ended, or is another user's
        return None
    path = _option(command, "--path")
    if "serve" not in command or path is None or (folder / path).resolve() != blocks:
        return None
    key = _option(command, "--key-file") or _option(command, "--new-key")
    if key is None:
        raise SystemExit("--blocks: its server must be started with --new-key or --key-file")
    again = [re.sub("^--new-key", "--key-file", word) for word in command]
    address = _option(command, "--listen") or _LISTEN
    return Store(again, folder, folder / key, int(entry.name), address)


def _option(command: list[str], name: str) -> str | None:
    """Of the two ways to write it; the last one counts."""
    found = None
    for at, word in enumerate(command):
        if word.startswith(name + "="):
            found = word.partition("=")[2]
        elif word == name and at + 1 < len(command):
            found = command[at + 1]
    return found


def _wait_for_end(process: int) -> None:
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end:
        try:
            if not Path(f"/proc/{process}/cmdline").read_bytes():
                return  # its parent has not noticed yet
        except OSError:
            return
        time.sleep(0.05)
    raise SystemExit(f"the store, process {process}, does not end")
