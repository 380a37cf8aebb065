"""``tests/bench store``: the store of blocks beside plain sockets, a copy and other stores.

Everything runs on this machine, over loopback. A client in this process gets blocks from a server
in memory, by TCP and in place, and looks keys up. Beside it: a plain socket that is asked for as
many bytes, a plain stream of them one way, a plain copy, Redis (redis-server) and Mooncake's store
(installed into the user's cache). All take turns of a twentieth of a second, so that a busy machine
is busy for all of them. Bytes are compared before anything is timed. Moewire compares the tag of
every block while it is timed; the others compare nothing. A peer that cannot be had is named
with the reason.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from moewire.bench import idle, report
from moewire.bench.arguments import names, seconds
from moewire.bench.peers import Unavailable
from moewire.errors import InvalidArgument

from ..result import add_options, end_at_sigterm, show, write
from . import markdown, turns
from .mooncake import Mooncake
from .ours import Ours, Server
from .plain import Asked, Copy, Stream
from .redis import Redis
from .work import WORKS, Side

PEERS: dict[str, Callable[[], Side]] = {"redis": Redis, "mooncake": Mooncake}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark and prints it; the exit status."""
    options = _parser().parse_args(argv)
    peers = [name for name in options.peers if name != "none"]
    unknown = [name for name in peers if name not in PEERS]
    if unknown:
        raise InvalidArgument(f"--peers {','.join(unknown)}: allowed: {','.join(PEERS)}, none")
    end_at_sigterm()  # servers end, too
    result = _measure(options, peers)
    tables = markdown.tables(result)
    show(options, tables.rstrip("\n"))
    write(options, result, tables)
    return 0


def _parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="tests/bench store",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = result.add_argument
    add("--peers", type=names, default=list(PEERS), help="redis, mooncake, both (default) or none")
    add("--seconds", type=seconds, default=2.0, help="for each number (2)")
    add_options(result)
    return result


def _measure(options: argparse.Namespace, peers: Sequence[str]) -> dict[str, Any]:
    quiet = idle.wait(options.idle_wait)
    rows = []
    with _sides(peers) as (sides, absent):
        for work in WORKS:
            show(options, f"{work.op} {work.name}")
            taking = [side for side in sides if side.takes(work)]
            rows.append(turns.summary(work, turns.measure(work, taking, options.seconds)))
    return {
        "schema": report.SCHEMA,
        "machine": report.machine(),
        "idle": quiet,
        "seconds": options.seconds,
        "versions": {side.name: side.version for side in sides if side.version},
        "sides": [side.name for side in sides],
        "absent": absent,
        "rows": rows,
    }


@contextmanager
def _sides(peers: Sequence[str]) -> Iterator[tuple[list[Side], dict[str, str]]]:
    """All that can be had, and why the others cannot."""
    with ExitStack() as open_:
        sides: list[Side] = []
        absent: dict[str, str] = {}

        def opened(make: Callable[[], Side]) -> None:
            sides.append(make())
            open_.callback(sides[-1].close)

        opened(Asked)
        opened(Stream)
        opened(Copy)
        server = Server()
        open_.callback(server.close)
        opened(lambda: Ours(server, "tcp"))
        opened(lambda: Ours(server, "shm"))
        for name in peers:
            try:
                opened(PEERS[name])
            except Unavailable as error:
                absent[name] = str(error)
        yield sides, absent
