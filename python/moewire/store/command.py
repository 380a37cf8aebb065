"""``moewire store``: serve blocks, and look at servers."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import time
from collections.abc import Sequence
from typing import Any

from .._base.numbers import refuse
from . import _bench, _key, _serve
from ._client import Client
from ._parts import Namespace
from ._unstored import why_not_stored

_LEAST_S, _MOST_S = 0.001, 3600
# Blocks of the people that look at a server are in no other namespace.
_OWN = Namespace(salt="moewire store")


def _reach(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--servers", help="host:port, several with commas (default: MOEWIRE_STORE_SERVERS)"
    )
    parser.add_argument("--key-file", help="the keys (default: MOEWIRE_KEY_FILE)")
    parser.add_argument("--protection", choices=("digest", "encrypt"), default="digest")


def _timeout(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout",
        type=float,
        default=2.0,
        metavar="SECONDS",
        help="for a connection, and without a byte afterwards (%(default)s)",
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="moewire store", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _serve.arguments(commands.add_parser("serve", help="run a server until SIGTERM"))
    _key.arguments(
        commands.add_parser("key", help="add a key to a server's file, with rights of its own")
    )
    stat = commands.add_parser("stat", help="print what servers say of themselves")
    _reach(stat)
    _timeout(stat)
    stat.add_argument("--json", action="store_true", help="all counts, as JSON")
    check = commands.add_parser("check", help="store a block, read it and delete it again")
    _reach(check)
    _timeout(check)
    bench = commands.add_parser(
        "bench", help="time gets and puts, next to a plain socket and a plain copy"
    )
    _reach(bench)
    _bench.arguments(bench)
    listing = commands.add_parser("list", help="print the keys of a namespace")
    _reach(listing)
    _timeout(listing)
    listing.add_argument("--namespace", required=True, help="its model")
    listing.add_argument(
        "--field",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another field of the namespace: weights, dtype, layout, chunk, parallel, salt",
    )
    listing.add_argument("--prefix", default="", help="what the keys begin with")
    return parser


def main(argv: Sequence[str]) -> int:
    """Runs one of the commands.

    Args:
        argv: the command and its arguments.

    Returns:
        The exit status: 0: done; 1: a server does not answer, or does not do what it should.
    """
    options = _parser().parse_args(argv)
    commands = {
        "serve": _serve.main,
        "key": _key.main,
        "stat": _stat,
        "check": _check,
        "list": _list,
        "bench": _bench.main,
    }
    return commands[options.command](options)


def _client(
    options: argparse.Namespace, namespace: Namespace, servers: str | None = None
) -> Client:
    if not _LEAST_S <= options.timeout <= _MOST_S:  # not so for a nan either
        raise refuse("--timeout", options.timeout, f"{_LEAST_S} to {_MOST_S} seconds")
    timeout_us = int(options.timeout * 1e6)
    return Client(
        servers or options.servers,
        namespace=namespace,
        key_file=options.key_file,
        protection=options.protection,
        timeout_us=timeout_us,
        connect_timeout_us=timeout_us,
    )


def _say_why(found: dict[str, Any]) -> None:
    """Says on the standard error why servers are not there."""
    for why in found.get("why_not", []):
        print(f"moewire store: {why}", file=sys.stderr)


def _stat(options: argparse.Namespace) -> int:
    with _client(options, _OWN) as client:
        found = client.stats()
    _say_why(found)
    servers: dict[str, Any] = found["servers"]
    if options.json:
        print(json.dumps(servers, indent=2))
    else:
        for name, said in servers.items():
            print(_line(name, said))
    return 0 if all(servers.values()) else 1


def _line(name: str, said: dict[str, Any] | None) -> str:
    if said is None:
        return f"{name}: no answer"
    kept, counts = said.get("store", {}), said["counts"]
    return (
        f"{name}: {kept.get('num_blocks', 0)} blocks, {kept.get('live_bytes', 0) / 2**20:.1f} of "
        f"{kept.get('capacity_bytes', 0) / 2**20:.1f} MiB, {said['clients']} clients, "
        f"{counts['hits']} hits, {counts['misses']} misses"
    )


def _check(options: argparse.Namespace) -> int:
    problems = 0
    with _client(options, _OWN) as client:
        names = list(client.stats()["servers"])
    for name in names:
        with _client(options, _OWN, name) as one:
            problem = _round_trip(one)
        print(f"{name}: {problem or 'ok'}")
        problems += problem != ""
    return 1 if problems else 0


def _round_trip(client: Client) -> str:
    """What is wrong with a server, or ""."""
    key, data = secrets.token_bytes(16), secrets.token_bytes(1 << 16)
    begun = time.monotonic()
    if not client.put(key, data):
        return why_not_stored(client)
    if client.get(key) != data:
        return "the block was not read back"
    if client.delete([key]) != 1 or client.get(key) is not None:
        return "the block was not deleted"
    print(f"64 KiB stored, read and deleted in {(time.monotonic() - begun) * 1e3:.1f} ms")
    return ""


def _list(options: argparse.Namespace) -> int:
    fields = {"model": options.namespace}
    for text in options.field:
        name, equals, value = text.partition("=")
        if not equals or name not in Namespace._fields or name == "model":
            allowed = ", ".join(field for field in Namespace._fields if field != "model")
            raise refuse("--field", repr(text), f"NAME=VALUE with one of {allowed}")
        fields[name] = value
    with _client(options, Namespace(**fields)) as client:
        for key in client.list(options.prefix):
            sys.stdout.write(_shown(key) + "\n")
        found = client.stats()
    _say_why(found)
    silent = sum(said is None for said in found["servers"].values())
    if silent:
        print(f"moewire store: keys of {silent} servers are left out", file=sys.stderr)
    return 1 if silent else 0


def _shown(key: bytes) -> str:
    """A key as one line of text."""
    text = key.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
