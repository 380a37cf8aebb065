"""Two network namespaces of this machine with a virtual cable between them, as two hosts.

A namespace lives as long as the process that holds it, which ends with its standard input:
nothing is left behind, however the benchmark ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import time

from moewire.errors import MoewireError

NIC = "moewire"
ADDRESSES = ("10.77.0.1", "10.77.0.2")
_TOOLS = ("ip", "tc", "nsenter", "unshare")
_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1


def lacking() -> str:
    """Why there can be no namespaces here; empty if there can."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"it needs the tools {', '.join(missing)} (packages iproute2 and util-linux)"
    probe = "ip link add name probe type veth peer name other"
    tried = subprocess.run(["unshare", "-n", "sh", "-c", probe], capture_output=True, text=True)
    if tried.returncode == 0:
        return ""
    return (
        "it makes network namespaces, for which it needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN): "
        f"{tried.stderr.strip()}"
    )


class Namespace:
    """A network namespace with nothing in it but loopback."""

    def __init__(self) -> None:
        self._holder = subprocess.Popen(
            ["unshare", "-n", "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        self.pid = self._holder.pid
        self.path = f"/proc/{self.pid}/ns/net"
        ours, deadline = os.readlink("/proc/self/ns/net"), time.monotonic() + 10
        while _target(self.path) in ("", ours):
            if time.monotonic() > deadline or self._holder.poll() is not None:
                self.close()
                raise MoewireError("unshare -n made no network namespace")
            time.sleep(0.001)
        self.run("ip link set lo up")

    def run(self, words: str) -> None:
        """A command inside."""
        _run(f"nsenter -t {self.pid} -n {words}")

    def close(self) -> None:
        """Ends it, once no other process is in it."""
        assert self._holder.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._holder.stdin.close()
        self._holder.wait()


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


class Cable:
    """Two namespaces, and a pair of interfaces that joins them. A context manager."""

    def __init__(self) -> None:
        self.hosts: list[Namespace] = []
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self.hosts = [Namespace()]
            self.hosts.append(Namespace())
            first, second = self.hosts
            first.run(f"ip link add {NIC} type veth peer name {NIC} netns {second.pid}")
            for host, address in zip(self.hosts, ADDRESSES, strict=True):
                host.run(f"ip addr add {address}/24 dev {NIC}")
                host.run(f"ip link set {NIC} up")
            undo.pop_all()

    @property
    def paths(self) -> tuple[str, str]:
        """The namespaces' files."""
        first, second = self.hosts
        return first.path, second.path

    def close(self) -> None:
        """Idempotent."""
        while self.hosts:
            self.hosts.pop().close()

    def __enter__(self) -> Cable:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


# ------------------------------------------------------ in a process of a host --


def enter(path: str) -> None:
    """Takes this process, which has one thread, into a namespace; it ends with its parent."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(descriptor, _CLONE_NEWNET) != 0:
            raise MoewireError(f"setns {path}: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(descriptor)
    # What looks for the way to other hosts must find this one.
    os.environ["GLOO_SOCKET_IFNAME"] = NIC


def burst_bytes(megabits: int) -> int:
    """How much the shaper lets through at once: a segment, and 0.2 ms at fast rates.

    With less the rate is not reached, because the shaper is woken up too late. With more, the
    shaper does not slow down short transfers, because that much passes after each rest.
    """
    return max(72 * 1024, megabits * 1_000_000 // 8 // 5000)


def shape(megabits: int) -> None:
    """Limits what this host sends; 0: as fast as the machine copies."""
    subprocess.run(["tc", "qdisc", "del", "dev", NIC, "root"], capture_output=True, check=False)
    if megabits:
        burst = burst_bytes(megabits)
        # The queue takes what TCP may have outstanding: a sender waits, and nothing is lost.
        limit = f"burst {burst} limit {16 << 20}"
        _run(f"tc qdisc add dev {NIC} root tbf rate {megabits}mbit {limit}")


def sent_bytes() -> int:
    """Bytes that this host has sent by now, Ethernet headers included.

    The kernel hands large segments over in one piece, and counts one header for each of them.
    """
    with open("/proc/thread-self/net/dev") as lines:
        for line in lines:
            name, _, numbers = line.partition(":")
            if name.strip() == NIC:
                return int(numbers.split()[8])
    raise MoewireError(f"no interface {NIC} here")


def _run(words: str) -> None:
    done = subprocess.run(words.split(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise MoewireError(f"{words}: {done.stderr.strip()}")
