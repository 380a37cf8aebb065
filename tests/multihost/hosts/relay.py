"""A wire between two network namespaces that does what it is told.

    relay.py CONTROL NIC SEED NAMESPACE NAMESPACE

makes a TUN interface in each namespace and carries packets between them. Orders are lines of the
pipe CONTROL: ``clear``; ``delay LEAST MOST`` (seconds, drawn for each packet, so they overtake one
another); ``lose PART``; ``stall`` (all packets are kept until the next order); ``cut`` (all are
lost); ``cut_after BYTES``. Ends with its standard input.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import random
import select
import struct
import sys
import time

from harness.enter import enter

_TUNSETIFF, _TUN_WITHOUT_HEADER = 0x400454CA, 0x1001


def open_tun(namespace: str, name: str) -> int:
    """The end of a new TUN interface in a namespace."""
    enter(namespace)
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TUN_WITHOUT_HEADER))
    return tun


class Relay:
    """The packets under way, and the order that holds."""

    def __init__(self, ends: tuple[int, int], seed: int) -> None:
        self._ends = ends
        self._random = random.Random(seed)
        self._waiting: list[tuple[float, int, int, bytes]] = []
        self._number = 0
        self._order, self._arguments = "clear", [0.0]

    def obey(self, line: str) -> None:
        self._order, *words = line.split()
        self._arguments = [float(word) for word in words]
        if self._order != "stall":
            self._waiting = [(0.0, *rest) for _, *rest in self._waiting]  # type: ignore[misc]

    def take(self, end: int) -> None:
        """Reads a packet from one end, for the other one."""
        packet = os.read(self._ends[end], 65536)
        moment = self._moment(len(packet))
        if moment is not None:
            self._number += 1
            heapq.heappush(self._waiting, (moment, self._number, 1 - end, packet))

    def _moment(self, size: int) -> float | None:
        """When a packet goes on; None: never."""
        if self._order == "cut_after":
            self._arguments[0] -= size
            return None if self._arguments[0] < 0 else 0.0
        if self._order == "cut":
            return None
        if self._order == "lose":
            return None if self._random.random() < self._arguments[0] else 0.0
        if self._order == "stall":
            return float("inf")
        if self._order == "delay":
            return time.monotonic() + self._random.uniform(*self._arguments)
        return 0.0

    def give(self) -> float:
        """Hands over what is due; the seconds until the next."""
        while self._waiting and self._waiting[0][0] <= time.monotonic():
            _, _, end, packet = heapq.heappop(self._waiting)
            with contextlib.suppress(OSError):  # an interface that is down, or full: it is lost
                os.write(self._ends[end], packet)
        if not self._waiting:
            return 1.0
        return min(1.0, self._waiting[0][0] - time.monotonic())


def main(control: str, nic: str, seed: str, one: str, other: str) -> None:
    orders = os.open(control, os.O_RDWR)
    ends = (open_tun(one, nic), open_tun(other, nic))
    relay = Relay(ends, int(seed))
    print("ready", flush=True)
    while True:
        readable, _, _ = select.select([0, orders, *ends], [], [], max(0.0, relay.give()))
        if 0 in readable:
            return
        if orders in readable:
            for line in os.read(orders, 4096).decode().splitlines():
                relay.obey(line)
        for which, end in enumerate(ends):
            if end in readable:
                relay.take(which)


if __name__ == "__main__":
    main(*sys.argv[1:])
