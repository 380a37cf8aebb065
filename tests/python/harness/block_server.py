"""``moewire store serve`` in a process of its own."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from moewire.store import Client, Namespace

SOON_S = 20
_NO_KEYS = {"MOEWIRE_KEY_FILE": "", "MOEWIRE_STORE_SERVERS": ""}


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "moewire", "store", *arguments]


def _variables() -> dict[str, str]:
    package = str(Path(sys.modules["moewire"].__file__ or "").parents[1])
    kept = {name: text for name, text in os.environ.items() if name not in _NO_KEYS}
    return {**kept, "PYTHONPATH": package}


def free_port() -> int:
    """One that no program of this host listens at."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def run(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs ``moewire store``."""
    return subprocess.run(
        _command(*arguments),
        capture_output=True,
        text=True,
        timeout=SOON_S,
        check=False,
        cwd=folder,
        env=_variables(),
    )


class Served:
    """A server that was started; ``start`` starts it again with the same key."""

    def __init__(self, folder: Path, *options: str, key: Path | None = None) -> None:
        self.folder = folder
        self.options = options
        self.key = key or folder / "key"
        self.line = ""
        self.start()

    def start(self) -> None:
        new = not self.key.exists()
        keys = ("--new-key" if new else "--key-file", str(self.key))
        self.process = subprocess.Popen(
            _command("serve", "--listen", "127.0.0.1:0", *keys, *self.options),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_variables(),
        )
        self.said = b""
        self.address = self.says(" at 127.0.0.1:").rpartition(" at ")[2]
        if new:
            self.line = self.says("export ")

    def says(self, words: str) -> str:
        """The next line with these words, within a time."""
        assert self.process.stdout is not None
        end = time.monotonic() + SOON_S
        while True:
            line, ended, rest = self.said.partition(b"\n")
            if ended:
                self.said = rest
                if words in line.decode():
                    return line.decode()
                continue
            left = max(0, end - time.monotonic())
            ready = select.select([self.process.stdout], [], [], left)[0]
            more = os.read(self.process.stdout.fileno(), 4096) if ready else b""
            assert more, f"the server has not said {words!r}; it says {self.said!r}"
            self.said += more

    def client(self, namespace: str | Namespace, **options: Any) -> Client:
        return Client(
            self.address,
            namespace=namespace,
            key_file=self.key,
            **{"timeout_us": 5_000_000, **options},
        )

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def stop(self) -> None:
        """Its process does nothing until ``go_on``."""
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(SOON_S)
        self._close()

    def _close(self) -> None:
        assert self.process.stdout is not None
        self.process.stdout.close()

    def end(self) -> int:
        """Ends it by SIGTERM; its status."""
        self.signal(signal.SIGTERM)
        status = self.process.wait(SOON_S)
        self._close()
        return status

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *exception: object) -> None:
        self.go_on()
        self.kill()
