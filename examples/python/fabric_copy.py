#!/usr/bin/env python3
"""Two processes move bytes without experts: one writes and reads the other's memory.

    python examples/python/fabric_copy.py

They exchange handshakes, and the address and key of a region, through a pipe. A real program may
use any socket, store or file. The bytes go over TCP, authenticated with a key that both have.
"""

import contextlib
import multiprocessing
import secrets
import threading

from moewire import ClosedError, UnknownHandleError
from moewire.fabric import Fabric, Remote

SIZE = 1 << 20
OTHER = 0  # each process has one peer, with this number


def carry_handshakes(fabric, handshakes):
    """Hands over what the other side's fabric wants carried, until either end is closed."""
    with contextlib.suppress(EOFError, OSError, ClosedError, UnknownHandleError):
        while True:
            fabric.deliver(OTHER, handshakes.recv_bytes())


def side(name, run, key, handshakes, talk):
    with Fabric(listen="127.0.0.1:0", keys=key) as fabric:
        threading.Thread(target=carry_handshakes, args=(fabric, handshakes), daemon=True).start()
        with fabric.couriers(lambda peer, handshake: handshakes.send_bytes(handshake)):
            fabric.connect(OTHER)
            # The newline in the same write: both sides print to the same place.
            print(f"{name}: {run(fabric, talk)}\n", end="", flush=True)


def writer(fabric, talk):
    mine = bytearray(b"moewire " * (SIZE // 8))
    with fabric.register(mine) as region:
        theirs = Remote(*talk.recv())
        with fabric.write_imm(OTHER, region, theirs, imm=7) as transfer:
            written = transfer.wait().num_bytes
        talk.recv()  # it is upper case now
        with fabric.read(OTHER, region, theirs, num_bytes=16) as transfer:
            transfer.wait()
        talk.send("read")
    return f"wrote {written} bytes, read back {bytes(mine[:16])!r}"


def owner(fabric, talk):
    mine = bytearray(SIZE)
    with fabric.register(mine) as region:
        talk.send(tuple(region.remote))
        with fabric.receive_imm(OTHER) as transfer:
            number = transfer.wait().imm
        mine[:] = mine.upper()
        talk.send("look")
        talk.recv()  # the other side has read it
    return f"number {number} came after {mine.count(b'MOEWIRE ') * 8} bytes"


def main():
    context = multiprocessing.get_context("spawn")  # not fork: the library does not survive it
    handshakes, talk = context.Pipe(), context.Pipe()
    key = f"1 {secrets.token_hex(32)}"
    sides = [
        context.Process(target=side, args=(run.__name__, run, key, handshakes[i], talk[i]))
        for i, run in enumerate((writer, owner))
    ]
    for process in sides:
        process.start()
    for process in sides:
        process.join()
    raise SystemExit(any(process.exitcode for process in sides))


if __name__ == "__main__":
    main()
