"""What a store is measured against: plain sockets, and a plain copy."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys

from ..errors import MoewireError

# The other end, a process of its own: it reads how much comes and how much is wanted.
_PEER = """
import socket, struct, sys
listener = socket.create_server(("127.0.0.1", 0))
listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
print(listener.getsockname()[1], flush=True)
listener.settimeout(20)
peer, _ = listener.accept()
peer.settimeout(600)
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
room = memoryview(bytearray(1 << 24))
while True:
    at = 0
    while at < 8:
        got = peer.recv_into(room[at:8])
        if not got:
            sys.exit()
        at += got
    comes, wanted = struct.unpack("<II", room[:8])
    at = 0
    while at < comes:
        got = peer.recv_into(room[at:comes])
        if not got:
            sys.exit()
        at += got
    peer.sendall(room[: wanted + 1])
"""
_WAIT_S = 60


class Socket:
    """A connection to a process of this host that answers at once. A context manager."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PEER], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        port = int(self._process.stdout.readline())
        self._socket = socket.socket()
        self._socket.settimeout(_WAIT_S)
        # As the store's own within a host: a ceiling has no pacing.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.connect(("127.0.0.1", port))
        self._room = memoryview(bytearray(1 << 24))

    @property
    def pid(self) -> int:
        """The process at the other end."""
        return self._process.pid

    def ask(self, num_bytes: int, wanted: int) -> None:
        """Sends bytes, and waits for as many as are wanted and one more: at most 2^24 - 1.

        Raises:
            MoewireError: the other end is gone.
        """
        self._socket.sendall(struct.pack("<II", num_bytes, wanted))
        if num_bytes:
            self._socket.sendall(self._room[:num_bytes])
        at = 0
        while at <= wanted:
            got = self._socket.recv_into(self._room[at : wanted + 1])
            if not got:
                raise MoewireError("the other end of the plain socket is gone")
            at += got

    def __enter__(self) -> Socket:
        return self

    def __exit__(self, *exception: object) -> None:
        self._socket.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


class Copy:
    """A copy from memory to memory."""

    def __init__(self, num_bytes: int) -> None:
        self._source = memoryview(bytes(num_bytes))
        self._to = memoryview(bytearray(num_bytes))

    def run(self) -> None:
        """Copies all bytes once."""
        self._to[:] = self._source
