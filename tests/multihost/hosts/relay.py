"""A wire between two network namespaces that does what it is told.

    relay.py CONTROL NIC SEED NAMESPACE NAMESPACE

makes a TUN interface in each namespace and carries packets between them. Commands are lines of the
pipe CONTROL: ``clear``; ``delay LEAST MOST`` (seconds, drawn for each packet, so they overtake one
another); ``lose PART``; ``double PART``; ``replay PART`` (an earlier packet once more); ``alter
PART`` (one bit of the TCP payload, with a matching checksum); ``stall`` (all packets are kept until
the next command); ``cut`` (all are lost); ``cut_after BYTES``. ``count PATH`` writes how often each
was applied, as JSON. Ends with its standard input.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import heapq
import json
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


def write_whole(path: str, text: str) -> None:
    """Writes the file so that a reader sees all of it."""
    with open(f"{path}.new", "w") as file:
        file.write(text)
    os.rename(f"{path}.new", path)


def with_one_bit_altered(packet: bytes, chance: random.Random) -> bytes:
    """The packet with one bit of its TCP payload (IPv4) changed; unchanged, if it has no payload.

    The checksum is that of the new packet (RFC 1624, equation 3), so that TCP lets it pass.
    """
    if packet[0] >> 4 != 4 or packet[9] != 6:
        return packet
    tcp = (packet[0] & 15) * 4
    begin = tcp + (packet[tcp + 12] >> 4) * 4
    if begin >= len(packet):
        return packet
    altered = bytearray(packet)
    at = chance.randrange(begin, len(packet))
    word = tcp + (at - tcp) // 2 * 2
    before = int.from_bytes(altered[word : word + 2].ljust(2, b"\0"))
    altered[at] ^= 1 << chance.randrange(8)
    after = int.from_bytes(altered[word : word + 2].ljust(2, b"\0"))
    total = (int.from_bytes(packet[tcp + 16 : tcp + 18]) ^ 0xFFFF) + (before ^ 0xFFFF) + after
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    altered[tcp + 16 : tcp + 18] = (total ^ 0xFFFF).to_bytes(2)
    return bytes(altered)


class Relay:
    """The packets under way, and the current command."""

    def __init__(self, ends: tuple[int, int], seed: int) -> None:
        self._ends = ends
        self._random = random.Random(seed)
        self._waiting: list[tuple[float, int, int, bytes]] = []
        self._number = 0
        self._order, self._arguments = "clear", [0.0]
        self._earlier: collections.deque[tuple[int, bytes]] = collections.deque(maxlen=256)
        self._done: collections.Counter[str] = collections.Counter()

    def obey(self, line: str) -> None:
        order, *words = line.split()
        if order == "count":
            write_whole(words[0], json.dumps(self._done))
            return
        self._order = order
        self._arguments = [float(word) for word in words]
        if self._order != "stall":
            self._waiting = [(0.0, *rest) for _, *rest in self._waiting]  # type: ignore[misc]

    def take(self, end: int) -> None:
        """Reads a packet from one end, for the other end."""
        packet = os.read(self._ends[end], 65536)
        self._done["carry"] += 1
        moment = self._moment(len(packet))
        if moment is None:
            self._done[self._order] += 1
            return
        for to, one in self._instead(1 - end, packet):
            self._number += 1
            heapq.heappush(self._waiting, (moment, self._number, to, one))

    def _instead(self, to: int, packet: bytes) -> list[tuple[int, bytes]]:
        """The packets to forward in place of a received one, each with its end."""
        self._earlier.append((to, packet))
        found = [(to, packet)]
        if self._order not in ("alter", "double", "replay"):
            return found
        if self._random.random() >= self._arguments[0]:
            return found
        if self._order == "alter":
            altered = with_one_bit_altered(packet, self._random)
            self._done["alter"] += altered != packet
            return [(to, altered)]
        self._done[self._order] += 1
        return [
            *found,
            (to, packet) if self._order == "double" else self._random.choice(self._earlier),
        ]

    def _moment(self, size: int) -> float | None:
        """When to forward a packet; None: never."""
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
        """Forwards the packets that are due; returns the seconds until the next."""
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
