"""A peer: Redis, asked by a bare socket, which is the least that a client of it can do.

A reply is received in one piece with the lengths in it, because all of them are known, and its
blocks are views of it. Nothing is compared while it is measured. The server writes nothing to
disk.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from functools import partial

from moewire.bench.peers import Unavailable
from moewire.errors import MoewireError

from .ports import free
from .work import EXISTS, Work, in_turn, processor_seconds, timed

_START_S, _ANSWER_S, _END_S = 10, 60, 10
_QUIET = ("--save", "", "--appendonly", "no", "--loglevel", "warning", "--bind", "127.0.0.1")


class Redis:
    """A server of its own, and a connection."""

    name = "redis"

    def __init__(self) -> None:
        program = shutil.which("redis-server")
        if not program:
            raise Unavailable("redis-server is not installed")
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
        self.version = said.stdout.partition(" sha=")[0].strip()
        self._folder = tempfile.TemporaryDirectory(prefix="moewire-bench-")
        self._port = free()
        self._process = subprocess.Popen(
            [program, *_QUIET, "--port", str(self._port), "--dir", self._folder.name],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            self._socket = self._connected()
        except Unavailable:
            self._end()
            raise

    def _connected(self) -> socket.socket:
        deadline = time.monotonic() + _START_S
        while self._process.poll() is None and time.monotonic() < deadline:
            with suppress(ConnectionRefusedError):
                made = socket.create_connection(("127.0.0.1", self._port), timeout=_ANSWER_S)
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return made
            time.sleep(0.02)
        raise Unavailable(f"{self.version} did not start")

    def takes(self, work: Work) -> bool:
        return True

    def fill(self, work: Work) -> None:
        self._ask(_command(b"FLUSHALL"), memoryview(bytearray(len(b"+OK\r\n"))))
        self._work, keys = work, work.block_keys()
        for group, blocks in zip(keys, work.data(), strict=True):
            pairs = [part for pair in zip(group, blocks, strict=True) for part in pair]
            self._ask(_command(b"MSET", *pairs), memoryview(bytearray(len(b"+OK\r\n"))))
        self._want = [_reply(work, blocks) for blocks in work.data()]
        self._into = [memoryview(bytearray(len(want))) for want in self._want]
        word = b"EXISTS" if work.op == EXISTS else b"MGET" if work.num_blocks > 1 else b"GET"
        self._call = in_turn(
            [
                partial(self._ask, _command(word, *group), into)
                for group, into in zip(keys, self._into, strict=True)
            ]
        )

    def _ask(self, request: bytes, into: memoryview) -> None:
        self._socket.sendall(request)
        at = 0
        while at < len(into):
            got = self._socket.recv_into(into[at:])
            if not got:
                raise MoewireError("redis ended while it was measured")
            at += got

    def right(self) -> bool:
        for _ in self._want:
            self._call()
        return all(into == want for into, want in zip(self._into, self._want, strict=True))

    def run(self, seconds: float) -> list[float]:
        return timed(self._call, seconds)

    def busy(self) -> float:
        return time.process_time() + processor_seconds(self._process.pid)

    def close(self) -> None:
        self._socket.close()
        self._end()

    def _end(self) -> None:
        self._process.kill()  # it has nothing to write
        self._process.wait(_END_S)
        self._folder.cleanup()


def _command(*words: bytes) -> bytes:
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        parts += [b"$%d\r\n" % len(word), word, b"\r\n"]
    return b"".join(parts)


def _reply(work: Work, blocks: list[bytes]) -> bytes:
    """What comes back when all blocks are there."""
    if work.op == EXISTS:
        return b":%d\r\n" % work.num_blocks
    return _command(*blocks) if work.num_blocks > 1 else _command(*blocks).partition(b"\r\n")[2]
