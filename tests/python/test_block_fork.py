"""What a forked child has of a client and a server: no connection and no port."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.block_server import SOON_S, Served
from moewire.store import Client

FORKS = """
import os, sys, warnings
warnings.simplefilter("ignore")
from moewire.store import Client, Server
server = Server("127.0.0.1:0", key_file=sys.argv[2], capacity_bytes=64 << 20)
client = Client(sys.argv[1] + "," + server.address, namespace="m", key_file=sys.argv[2])
assert all(client.put(str(n), b"b") for n in range(20))
address = server.address
if os.fork() == 0:
    print(address, os.getpid(), flush=True)
    sys.stdin.read()
    os._exit(0)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("fork"), "--capacity", "64MiB") as server:
        yield server


def test_a_child_outlives_its_parent(served: Served) -> None:
    """The parent's death ends its connections and its port, though a child of it lives on."""
    program = subprocess.Popen(
        [sys.executable, "-c", FORKS, served.address, str(served.key)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with program, served.client("m") as client:
        assert program.stdout is not None
        address, child = program.stdout.readline().decode().split()
        assert _clients(client, served) == 2
        program.send_signal(signal.SIGKILL)
        program.wait(SOON_S)
        end = time.monotonic() + SOON_S
        while _clients(client, served) > 1:
            assert time.monotonic() < end, "the child has the connection"
            time.sleep(0.01)
        host, _, port = address.rpartition(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)), SOON_S).close()
        assert Path(f"/proc/{child}").exists()


def _clients(client: Client, served: Served) -> int:
    return client.stats()["servers"][served.address]["clients"]
