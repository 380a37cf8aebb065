"""Two network namespaces, as two hosts, joined by a pair of interfaces or a relay.

A namespace lives as long as a process in it. That process ends with its standard input, so nothing
is left behind when the tests are killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

from typing_extensions import Self

from harness.team import Team

from .layout import KEY, Variables

NIC = "moewire"
ADDRESSES = ("10.77.0.1", "10.77.0.2")
ADDRESSES_V6 = ("fd77::1", "fd77::2")
_RELAY = Path(__file__).with_name("relay.py")
_PER_HOST = 2
_TOOLS = ("ip", "tc", "nsenter", "unshare")


def lacking() -> str:
    """Why there can be no namespaces here; empty if there can."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"network namespaces need {', '.join(missing)}"
    probe = "ip link add name probe type veth peer name other"
    tried = subprocess.run(["unshare", "-n", "sh", "-c", probe], capture_output=True, text=True)
    return f"network namespaces: {tried.stderr.strip()}" if tried.returncode else ""


class Namespace:
    """A network namespace with a working loopback."""

    def __init__(self) -> None:
        self._holder = subprocess.Popen(
            ["unshare", "-n", "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        self.path = f"/proc/{self._holder.pid}/ns/net"
        self.pid = self._holder.pid
        ours, deadline = os.readlink("/proc/self/ns/net"), time.monotonic() + 30
        while os.readlink(self.path) == ours:
            if time.monotonic() > deadline or self._holder.poll() is not None:
                raise TimeoutError("unshare -n made no namespace")
            time.sleep(0.001)
        self.run("ip link set lo up")

    def command(self, words: str) -> str:
        """A shell command that runs the same inside, for a user that may enter."""
        return f"nsenter -t {self.pid} -n {words}"

    def run(self, words: str) -> None:
        subprocess.run(self.command(words), shell=True, check=True)

    def address(self, which: int) -> None:
        """Gives the interface its addresses."""
        self.run(f"ip addr add {ADDRESSES[which]}/24 dev {NIC}")
        with contextlib.suppress(subprocess.CalledProcessError):  # a kernel without IPv6
            self.run(f"ip addr add {ADDRESSES_V6[which]}/64 dev {NIC} nodad")
        self.run(f"ip link set {NIC} up")

    def close(self) -> None:
        assert self._holder.stdin is not None
        self._holder.stdin.close()
        self._holder.wait()


class _Pair:
    """Two namespaces, and a team with two processes in each."""

    def __init__(self, seed: int) -> None:
        self.hosts = (Namespace(), Namespace())
        paths = [host.path for host in self.hosts for _ in range(_PER_HOST)]
        self.team = Team(seed, paths)

    def variables(self, listen: tuple[str, str] = ADDRESSES, **more: str) -> list[Variables]:
        """The variables by process. They name no host: each process finds out its own."""
        return [
            {"MOEWIRE_KEY": KEY, "MOEWIRE_LISTEN": listen[which], **more}
            for which in range(2)
            for _ in range(_PER_HOST)
        ]

    def close(self) -> None:
        self.team.close()
        for host in self.hosts:
            host.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Wired(_Pair):
    """Joined by a pair of virtual interfaces: four ranks, two on each side."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        peer = f"peer name {NIC} netns {self.hosts[1].pid}"
        self.hosts[0].run(f"ip link add {NIC} type veth {peer}")
        for which, host in enumerate(self.hosts):
            host.address(which)


class Relayed(_Pair):
    """Joined by a program that handles every packet: four ranks, two on each side."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._folder = tempfile.TemporaryDirectory(prefix="moewire-relay-")
        self.control = os.path.join(self._folder.name, "control")
        os.mkfifo(self.control)
        paths = [host.path for host in self.hosts]
        harness = Path(sys.modules["harness"].__file__ or "").parents[1]
        self._relay = subprocess.Popen(
            [sys.executable, _RELAY, self.control, NIC, str(seed), *paths],
            env={**os.environ, "PYTHONPATH": str(harness)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._relay.stdout is not None
        if self._relay.stdout.readline() != b"ready\n":
            raise RuntimeError("the relay did not start")
        for which, host in enumerate(self.hosts):
            host.run(f"ip link set {NIC} mtu 1280")
            host.address(which)

    def tell(self, order: str) -> str:
        """The command that gives the relay an order."""
        return f"echo {order} > {self.control}"

    def counts(self) -> dict[str, int]:
        """How many packets the relay has carried, and what it did to them."""
        path = Path(f"{self.control}.counts")
        path.unlink(missing_ok=True)
        subprocess.run(["sh", "-c", self.tell(f"count {path}")], check=True, timeout=10)
        deadline = time.monotonic() + 10
        while not path.exists():
            assert time.monotonic() < deadline, "the relay does not count"
            time.sleep(0.01)
        return dict(json.loads(path.read_text()))

    def close(self) -> None:
        super().close()
        with self._relay as relay:  # ends with its standard input
            assert relay.stdin is not None
            relay.stdin.close()
        self._folder.cleanup()
