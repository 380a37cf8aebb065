"""A rank is killed while its sockets live on, or while another process takes its ports."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
import socket
import time
from dataclasses import replace
from pathlib import Path

from harness.jobs_faults import exchange, go_on
from harness.member import Rank

from .hostile import listening

_CLONE = {"x86_64": 56, "aarch64": 220}  # the system call's number
_TIMEOUT_S = 60.0


def struck(rank: Rank, killed: int, child: str, port_taken: bool) -> float:
    """Seconds from the kill of rank ``killed`` until this rank's exchange without it is over.

    The last process is not a rank: it kills, and takes the ports. ``child``: "fork" leaves behind a
    process that the killed rank has forked, "clone" one that it has made without fork handlers.
    """
    world = replace(rank, size=rank.size - 1)
    if rank.rank == world.size:
        return _reaper(rank, killed, port_taken)
    try:
        buffer = world.buffer()
        exchange(buffer, world)
        if rank.rank == killed and child:
            _leave_behind(rank, child)
        Path(rank.folder, f"pid-{rank.rank}").write_text(str(os.getpid()))
        rank.meet("ready")
        if rank.rank == killed:
            time.sleep(_TIMEOUT_S)
        go_on(buffer, world, -1, {killed})
        noticed = time.monotonic()
        assert buffer.members() == [r for r in range(world.size) if r != killed]
        others = [r for r in range(world.size) if r != killed]
        rank.meet_some("over", others)
        buffer.close()
        return noticed - float(Path(rank.folder, "moment").read_text())
    finally:
        Path(rank.folder, f"end-{rank.rank}").touch()


def _leave_behind(rank: Rank, how: str) -> None:
    """Makes a process that holds its inherited descriptors until the survivors are done."""
    libc = ctypes.PyDLL(None, use_errno=True)
    if how == "fork":
        pid = os.fork()
    else:
        pid = libc.syscall(_CLONE[platform.machine()], int(signal.SIGCHLD), 0, 0, 0, 0)
    assert pid >= 0, os.strerror(ctypes.get_errno())
    if pid == 0:
        _await_end(rank)
        os._exit(0)


def _await_end(rank: Rank) -> None:
    until = time.monotonic() + _TIMEOUT_S
    folder = Path(rank.folder)
    while not any(folder.glob("end-*")) and time.monotonic() < until:
        time.sleep(0.01)


def _reaper(rank: Rank, killed: int, port_taken: bool) -> float:
    """Kills the rank; with ``port_taken`` the survivors see nothing until it has the ports."""
    rank.meet("ready")
    pids = {r: int(Path(rank.folder, f"pid-{r}").read_text()) for r in range(rank.size - 1)}
    # It takes the port of the control connections, which was made first.
    port = min(_ports_by_age(pids[killed]), default=None)
    survivors = [pid for r, pid in pids.items() if r != killed]
    with contextlib.ExitStack() as held:
        if port_taken:
            for pid in survivors:
                os.kill(pid, signal.SIGSTOP)
        Path(rank.folder, "moment").write_text(repr(time.monotonic()))
        os.kill(pids[killed], signal.SIGKILL)
        if port_taken:
            assert port is not None
            held.enter_context(_take(port[1]))
            for pid in survivors:
                os.kill(pid, signal.SIGCONT)
        _await_end(rank)
    return 0.0


def _ports_by_age(pid: int) -> list[tuple[int, int]]:
    """(descriptor, port) of a process's TCP listeners."""
    return [(_descriptor(pid, port), port) for port in listening(pid)]


def _descriptor(pid: int, port: int) -> int:
    with open("/proc/net/tcp") as file:
        rows = [line.split() for line in file.readlines()[1:]]
    inode = next(r[9] for r in rows if r[3] == "0A" and int(r[1].split(":")[1], 16) == port)
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/fd/{name}") == f"socket:[{inode}]":
                return int(name)
    raise LookupError(port)


def _take(port: int) -> socket.socket:
    """Listens at a port as soon as it is free, and sends nothing to clients."""
    until = time.monotonic() + _TIMEOUT_S
    while True:
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
            one.listen(64)
            return one
        except OSError:
            one.close()
            if time.monotonic() > until:
                raise
            time.sleep(0.001)
