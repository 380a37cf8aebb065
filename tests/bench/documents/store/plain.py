"""Ceilings: plain sockets that ask and are answered, a plain stream, a plain copy."""

from __future__ import annotations

import struct
import time
from functools import partial

from moewire.errors import MoewireError
from moewire.store._ceiling import Socket

from .work import EXISTS, GET, MIB, Work, in_turn, processor_seconds, timed

_PIECES = 16


class Asked:
    """A request, and a reply of as many bytes as the blocks have."""

    name, version = "socket", ""

    def __init__(self) -> None:
        self._socket = Socket()
        self._asked = self._wanted = 0

    def takes(self, work: Work) -> bool:
        return work.num_sets == 1

    def fill(self, work: Work) -> None:
        """The keys of exists go there, and a bit for each comes back."""
        exists = work.op == EXISTS
        self._asked = sum(len(key) for key in work.block_keys()[0]) if exists else 0
        self._wanted = work.num_blocks // 8 if exists else work.total

    def right(self) -> bool:
        return True

    def run(self, seconds: float) -> list[float]:
        return timed(lambda: self._socket.ask(self._asked, self._wanted), seconds)

    def busy(self) -> float:
        return time.process_time() + processor_seconds(self._socket.pid)

    def close(self) -> None:
        self._socket.__exit__()


class _Pieces(Socket):
    """Replies of 1 MiB that were asked for together, all to one place."""

    def stream(self) -> None:
        self._socket.sendall(struct.pack("<II", 0, MIB - 1) * _PIECES)
        left = _PIECES * MIB
        while left:
            got = self._socket.recv_into(self._room[: min(MIB, left)])
            if not got:
                raise MoewireError("the other end of the plain stream is gone")
            left -= got


class Stream:
    """Bytes one way, without a wait between them; the seconds are those of a call's bytes."""

    name, version = "one way", ""

    def __init__(self) -> None:
        self._socket = _Pieces()
        self._share = 1.0

    def takes(self, work: Work) -> bool:
        return work.op == GET and work.total >= MIB and work.num_sets == 1

    def fill(self, work: Work) -> None:
        self._share = work.total / (_PIECES * MIB)

    def right(self) -> bool:
        return True

    def run(self, seconds: float) -> list[float]:
        return [spent * self._share for spent in timed(self._socket.stream, seconds)]

    def busy(self) -> float:
        """Per call, as the seconds are."""
        return (time.process_time() + processor_seconds(self._socket.pid)) * self._share

    def close(self) -> None:
        self._socket.__exit__()


class Copy:
    """From memory to memory, in this process."""

    name, version = "copy", ""

    def takes(self, work: Work) -> bool:
        return work.op == GET

    def fill(self, work: Work) -> None:
        sources = [b"".join(blocks) for blocks in work.data()]
        places = [memoryview(bytearray(work.total)) for _ in sources]
        self._call = in_turn(
            [
                partial(place.__setitem__, slice(None), source)
                for place, source in zip(places, sources, strict=True)
            ]
        )

    def right(self) -> bool:
        return True

    def run(self, seconds: float) -> list[float]:
        return timed(self._call, seconds)

    def busy(self) -> float:
        return time.process_time()

    def close(self) -> None:
        """Nothing is open."""
