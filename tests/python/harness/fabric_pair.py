"""Two processes with a fabric each: the test's own, and one that does what it is told."""

from __future__ import annotations

import contextlib
import multiprocessing
import secrets
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

from moewire import MoewireError
from moewire.fabric import Fabric, Remote

PEER = 5  # what each calls the other
SOON = 30_000_000
KEY = f"3 {secrets.token_hex(32)}"


def carry(fabric: Fabric, handshakes: Connection) -> None:
    """Handshakes from the other side, until either is closed; late ones of one before, too."""
    with contextlib.suppress(EOFError, OSError, MoewireError):
        while True:
            fabric.deliver(PEER, handshakes.recv_bytes())


@contextlib.contextmanager
def working(options: dict[str, Any], key: str, handshakes: Connection) -> Iterator[Fabric]:
    with Fabric(listen="127.0.0.1:0", keys=key, **options) as fabric:
        threading.Thread(target=carry, args=(fabric, handshakes), daemon=True).start()
        with fabric.couriers(lambda peer, handshake: handshakes.send_bytes(handshake)):
            fabric.connect(PEER, SOON)
            yield fabric


def serve(options: dict[str, Any], key: str, handshakes: Connection, orders: Connection) -> None:
    """Has one region of 64 KiB, and obeys."""
    with working(options, key, handshakes) as fabric:
        mine = bytearray(1 << 16)
        with fabric.register(mine) as region:
            orders.send(tuple(region.remote))
            for order, *args in iter(orders.recv, None):
                orders.send(obey(fabric, region, mine, order, *args))


def obey(fabric: Fabric, region: Any, mine: bytearray, order: str, *args: Any) -> Any:
    if order == "look":
        return bytes(mine[args[0] : args[1]])
    if order == "fill":
        mine[args[0] : args[0] + len(args[1])] = args[1]
        return None
    if order == "disconnect":
        return fabric.disconnect(PEER)
    if order == "write_imm":
        begin = lambda: fabric.write_imm(PEER, None, Remote(*args[0]), args[1])  # noqa: E731
    elif order == "receive_imm":
        begin = lambda: fabric.receive_imm(PEER)  # noqa: E731
    elif order == "send":
        mine[: len(args[0])] = args[0]
        begin = lambda: fabric.send(PEER, region, num_bytes=len(args[0]))  # noqa: E731
    else:
        raise ValueError(order)
    with Fabric.retry(begin, SOON) as transfer:
        return tuple(transfer.wait(SOON))


class Other:
    """The other process, seen from the test."""

    def __init__(self, orders: Connection) -> None:
        self._orders = orders
        self.remote = Remote(*orders.recv())

    def do(self, order: str, *args: Any) -> Any:
        self.begin(order, *args)
        return self.end()

    def begin(self, order: str, *args: Any) -> None:
        self._orders.send((order, *args))

    def end(self) -> Any:
        assert self._orders.poll(60), "the other process does not answer"
        return self._orders.recv()


@contextlib.contextmanager
def pair(**options: Any) -> Iterator[tuple[Fabric, Other]]:
    context = multiprocessing.get_context("spawn")
    (handshakes, their_handshakes), (orders, their_orders) = context.Pipe(), context.Pipe()
    process = context.Process(target=serve, args=(options, KEY, their_handshakes, their_orders))
    process.start()
    for end in (their_handshakes, their_orders):
        end.close()
    try:
        with working(options, KEY, handshakes) as fabric:
            yield fabric, Other(orders)
            with contextlib.suppress(OSError):
                orders.send(None)
            process.join(60)
            assert process.exitcode == 0
    finally:
        if process.is_alive():
            process.kill()
            process.join()
        handshakes.close()
        orders.close()
