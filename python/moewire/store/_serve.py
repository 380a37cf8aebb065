"""``moewire store serve``."""

from __future__ import annotations

import argparse
import os
import re
import secrets
import signal
import sys
import threading
import time
from contextlib import suppress

from .._base.numbers import refuse
from ..errors import InvalidArgument, MoewireError
from ._server import DURABILITIES, STORAGES, Server

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_DRAIN_US = 10_000_000
_LOOK_S = 0.25
_FLUSH_MS = (1, 10_000)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("--listen", default="127.0.0.1:9900", help="address:port (%(default)s)")
    parser.add_argument("--storage", choices=tuple(STORAGES), default="memory")
    parser.add_argument("--path", help="the folder, with --storage file")
    parser.add_argument("--capacity", default="1GiB", help="for all blocks (%(default)s)")
    parser.add_argument("--key-file", help="the keys (default: MOEWIRE_KEY_FILE)")
    parser.add_argument("--new-key", metavar="FILE", help="make a key there, and use it")
    parser.add_argument(
        "--metrics",
        metavar="ADDRESS:PORT",
        help="serve GET /metrics there, for Prometheus; it asks for no key (default: no)",
    )
    parser.add_argument("--protection", choices=("digest", "encrypt"), default="digest")
    parser.add_argument(
        "--signed",
        choices=("on", "off"),
        help="single signed requests, which are not encrypted (default: on without encrypt)",
    )
    parser.add_argument(
        "--durability", choices=tuple(DURABILITIES), default="group", help="with --storage file"
    )
    parser.add_argument(
        "--flush-every",
        type=float,
        metavar="MILLISECONDS",
        help="with --durability group: the longest time between two flushes (default: 20)",
    )
    parser.add_argument(
        "--flush-bytes",
        metavar="SIZE",
        help="the same: flush sooner after so much (default: 64MiB)",
    )


def size_of(text: str, name: str = "--capacity") -> int:
    """Bytes of a text such as 512MiB; the name is that of the argument."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*(?:([KMGT])(?:iB)?)?", text.strip())
    if not found:
        raise refuse(name, repr(text), "a number of bytes, or with KiB, MiB, GiB, TiB")
    return int(float(found[1]) * _UNITS[found[2] or ""])


def write_key(path: str, text: str) -> None:
    """Writes a key file that its owner alone may read. A file that is there stays."""
    try:
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        raise InvalidArgument(f"--new-key: {path} is there already; allowed: a new file") from None
    except OSError as error:
        raise InvalidArgument(f"--new-key: {path}: {error.strerror}") from None
    with os.fdopen(file, "w") as to:
        to.write(text)


def main(options: argparse.Namespace) -> int:
    """Serves until SIGTERM or SIGINT. SIGHUP reads the keys again.

    Returns:
        The exit status: 1 if the storage could not be closed.
    """
    if options.new_key and options.key_file:
        raise refuse("--new-key, --key-file", "both", "one of them")
    capacity, flush = size_of(options.capacity), _flush_of(options)
    if options.new_key:
        write_key(options.new_key, f"1 {secrets.token_hex(32)}\n")
    try:
        server = Server(
            options.listen,
            storage=options.storage,
            path=options.path,
            capacity_bytes=capacity,
            key_file=options.new_key or options.key_file,
            protection=options.protection,
            durability=options.durability,
            **flush,
            metrics=options.metrics,
            signed=options.signed and options.signed == "on",
        )
    except BaseException:
        if options.new_key:  # made a moment ago, and of no use
            with suppress(OSError):
                os.unlink(options.new_key)
        raise
    _serve(server, options, capacity)
    closed = _close(server, options.storage)
    with suppress(MoewireError):  # it was said
        server.close()
    print("moewire store: ended", flush=True)
    return 0 if closed else 1


def _flush_of(options: argparse.Namespace) -> dict[str, int]:
    """The arguments of ``Server`` that say when groups are flushed, if they were given."""
    flush = {}
    if options.flush_every is not None:
        ms = options.flush_every
        if not _FLUSH_MS[0] <= ms <= _FLUSH_MS[1]:  # not so for a nan either
            raise refuse("--flush-every", ms, f"{_FLUSH_MS[0]} to {_FLUSH_MS[1]} milliseconds")
        flush["flush_every_us"] = int(ms * 1e3)
    if options.flush_bytes is not None:
        flush["flush_bytes"] = size_of(options.flush_bytes, "--flush-bytes")
    return flush


def _serve(server: Server, options: argparse.Namespace, capacity: int) -> None:
    wake, asked = threading.Event(), set[int]()

    def note(number: int, _: object) -> None:
        asked.add(number)
        wake.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, note)
    print(f"moewire store: {capacity} bytes of {options.storage} at {server.address}", flush=True)
    if options.new_key:
        key = os.path.abspath(options.new_key)
        print(f"export MOEWIRE_STORE_SERVERS={server.address} MOEWIRE_KEY_FILE={key}", flush=True)
    if server.metrics_address:
        print(f"moewire store: metrics at http://{server.metrics_address}/metrics", flush=True)
    while not asked & {signal.SIGTERM, signal.SIGINT}:
        wake.wait(_LOOK_S)
        wake.clear()
        if signal.SIGHUP in asked:
            asked.discard(signal.SIGHUP)
            _reload(server)
        _pass_on(server)


def _pass_on(server: Server) -> None:
    for line in server.log():
        _say(line)


def _say(line: str) -> None:
    print(f"moewire store: {line}", file=sys.stderr, flush=True)


def _close(server: Server, storage: str) -> bool:
    """Waits until running requests have ended, and says so. Lines of the log are passed on.

    Returns:
        Whether the storage was closed.
    """
    said, begun = server.stats(), time.monotonic()
    _say(f"draining: {said['requests_running']} requests of {said['clients']} clients")
    problem: list[Exception] = []
    draining = threading.Thread(target=_drain, args=(server, problem))
    draining.start()
    while draining.is_alive():
        draining.join(_LOOK_S)
        _pass_on(server)
    _pass_on(server)
    done = "its files are sealed" if storage == "file" else "its blocks are gone"
    _say(f"drained after {time.monotonic() - begun:.1f} s: {problem[0] if problem else done}")
    return not problem


def _drain(server: Server, problem: list[Exception]) -> None:
    try:
        server.drain(_DRAIN_US)
    except Exception as error:
        problem.append(error)


def _reload(server: Server) -> None:
    try:
        server.reload()
        _say("keys were read again")
    except MoewireError as error:
        _say(f"the keys stay: {error}")
