"""An unauthenticated client that knows where ranks listen, and has no key."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import moewire
from harness import verify
from harness.jobs_faults import exchange
from harness.jobs_input import case_for
from harness.member import Rank

_LISTEN = "0A"
_ETH_P_ALL = 3
_SO_RCVBUFFORCE = 33  # socket(7); for a process that may sniff
MAX_GROWTH_BYTES = 64 << 20


def listening(pid: int) -> list[int]:
    """The TCP ports of 127.0.0.1 at which a process listens."""
    held = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            held.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    with open("/proc/net/tcp") as file:
        rows = [line.split() for line in file.readlines()[1:]]
    return [
        int(row[1].split(":")[1], 16)
        for row in rows
        if row[3] == _LISTEN and f"socket:[{row[9]}]" in held
    ]


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


class Recorder:
    """Records what goes to ports over loopback, by connection; empty without the right to sniff."""

    def __init__(self) -> None:
        self._streams: dict[tuple[int, int], dict[int, bytes]] = {}
        self._socket: socket.socket | None = None
        with contextlib.suppress(PermissionError):
            self._socket = socket.socket(
                socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_ALL)
            )
            self._socket.bind(("lo", 0))
            self._socket.settimeout(0.1)
            # Other programs use the loopback, too: their packets must not displace ours.
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 16 << 20)
        self._on = self._socket is not None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self, ports: set[int]) -> list[bytes]:
        """The streams to these ports, each from its beginning."""
        self._on = False
        self._thread.join()
        if self._socket is not None:
            self._socket.close()
        return [
            b"".join(parts[at] for at in sorted(parts))
            for (_, port), parts in self._streams.items()
            if port in ports
        ]

    def _run(self) -> None:
        while self._on and self._socket is not None:
            with contextlib.suppress(TimeoutError):
                self._keep(self._socket.recv(1 << 17))

    def _keep(self, packet: bytes) -> None:
        if len(packet) < 40 or packet[0] >> 4 != 4 or packet[9] != socket.IPPROTO_TCP:
            return
        tcp = packet[(packet[0] & 15) * 4 :]
        source, to, seq = struct.unpack_from("!HHI", tcp)
        data = tcp[(tcp[12] >> 4) * 4 :]
        if data and len(self._streams) < 1024:
            parts = self._streams.setdefault((source, to), {})
            if len(parts) < 64:
                parts[seq] = data


def call(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=5)


def throw(port: int, data: bytes, linger: float = 0.0) -> None:
    """Sends bytes and closes; the other side may end the connection at any time."""
    with contextlib.suppress(OSError), call(port) as one:
        one.sendall(data)
        time.sleep(linger)


def drip(port: int, data: bytes) -> None:
    """Sends one byte at a time."""
    with contextlib.suppress(OSError), call(port) as one:
        for at in range(min(len(data), 40)):
            one.sendall(data[at : at + 1])
            time.sleep(0.01)


def flood(port: int, seconds: float) -> None:
    """Sends without end."""
    until = time.monotonic() + seconds
    with contextlib.suppress(OSError), call(port) as one:
        while time.monotonic() < until:
            one.sendall(b"\xff" * 65536)


def attack(ports: list[int], recorded: list[bytes], rng: random.Random) -> None:
    """Makes every attack on every port; returns when all bytes were sent."""
    waiting = []
    for port in ports:
        for _ in range(120):  # more than may wait for authentication
            with contextlib.suppress(OSError):
                waiting.append(call(port))
        threads: list[tuple[Callable[..., None], tuple[object, ...]]] = [(flood, (port, 0.5))]
        for data in [rng.randbytes(3000), b"\xff" * 5000, *recorded]:
            threads.append((drip, (port, data)))
            throw(port, data, 0.02)
            throw(port, data[: rng.randint(1, max(1, len(data) - 1))])
            for _ in range(3):
                changed = bytearray(data)
                changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                throw(port, bytes(changed))
        run = [threading.Thread(target=what, args=args) for what, args in threads]
        for thread in run:
            thread.start()
        for thread in run:
            thread.join()
    for one in waiting:
        one.close()


def besieged(rank: Rank) -> dict[str, int]:
    """Two ranks meet, exchange and update, while process 2 attacks them."""
    if rank.rank == 2:
        return _attacker(rank)
    world = replace(rank, size=2)
    with open(os.path.join(rank.folder, f"pid-{rank.rank}"), "w") as file:
        file.write(str(os.getpid()))
    rank.meet("here")
    if rank.rank == 1:
        rank.meet_some("attacked", [1, 2])  # rank 0 waits for us, and its listener is open
    with world.buffer() as buffer:
        exchange(buffer, world)
        rank.meet("connected")
        begin, number = resident_bytes(os.getpid()), 0
        done = os.path.join(rank.folder, "meet-done-2")
        while _more(buffer, world, rank.rank == 1 and os.path.exists(done), number):
            number += 1
        grown = resident_bytes(os.getpid()) - begin
        buffer.update_ep_member()
        assert buffer.members() == [0, 1]
        exchange(buffer, world)
        world.meet("end")
    return {"grown": grown, "exchanges": number}


def _more(buffer: moewire.Buffer, world: Rank, enough: bool, number: int) -> bool:
    """One exchange, from which both ranks learn whether rank 1 wants to stop."""
    case = case_for(world, number % 50)
    received = verify.dispatch(buffer, case, world.rank, more=world.rank == 1 and not enough)
    verify.combine(buffer, received)
    return bool(received.handle.peers_have_more)


def _attacker(rank: Rank) -> dict[str, int]:
    recorder, rng = Recorder(), random.Random(rank.seed)
    rank.meet("here")
    pids = []
    for peer in range(2):
        with open(os.path.join(rank.folder, f"pid-{peer}")) as file:
            pids.append(int(file.read()))
    control = _wait_for_ports(pids[0])
    attack(control, [], rng)
    rank.meet_some("attacked", [1, 2])
    rank.meet("connected")
    ports = [port for pid in pids for port in listening(pid)]
    recorded = recorder.stop({*ports, *control})
    attack(ports, recorded, rng)
    rank.meet_some("done", [2])
    return {"ports": len(ports), "control": len(control), "recorded": len(recorded)}


def _wait_for_ports(pid: int) -> list[int]:
    deadline = time.monotonic() + 30
    while not (found := listening(pid)):
        if time.monotonic() > deadline:
            raise TimeoutError("rank 0 listens nowhere")
        time.sleep(0.005)
    return found
