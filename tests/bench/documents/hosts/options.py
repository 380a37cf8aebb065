"""The options of ``tests/bench hosts``."""

from __future__ import annotations

import argparse
from typing import Any

from moewire.bench.arguments import names, seconds, sizes, some_numbers
from moewire.bench.cases import Case
from moewire.errors import InvalidArgument

from ..result import add_options
from . import cells
from .place import Settings

PEERS = ("gloo", "mooncake")
_SIZES = (64 << 10, 1 << 20, 16 << 20)


def _peers(text: str) -> list[str]:
    return [name for name in names(text) if name != "none"]


def parser(description: str | None) -> argparse.ArgumentParser:
    """Lists have commas; an empty list leaves that part out."""
    result = argparse.ArgumentParser(
        prog="tests/bench hosts",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = result.add_argument
    add(
        "--links",
        type=some_numbers,
        default=[0, 10_000, 1000],
        metavar="MBIT,...",
        help="rates of the cable, Mbit/s; 0: as fast as the machine copies (0,10000,1000)",
    )
    add(
        "--sizes",
        type=sizes,
        default=list(_SIZES),
        metavar="BYTES,...",
        help="of the writes, with K or M (64K,1M,16M)",
    )
    add("--connections", type=some_numbers, default=[1, 4], help="sockets between the hosts (1,4)")
    add(
        "--ranks",
        type=some_numbers,
        default=[2, 4],
        help="ranks that exchange rows, half of them on each host (2,4)",
    )
    add("--tokens", type=int, default=128, help="per rank (128)")
    add("--hidden", type=int, default=7168, help="values per token (7168)")
    add("--experts", type=int, default=64, help="in all (64)")
    add("--topk", type=int, default=8, help="selections per token (8)")
    add("--peers", type=_peers, default=list(PEERS), help="gloo, mooncake, both (default) or none")
    add("--repeat", type=int, default=10, help="measured repetitions (10)")
    add("--warmup", type=int, default=1, help="repetitions before them (1)")
    add("--seed", type=int, default=1, help="of bytes and routing (1)")
    add(
        "--share-processors",
        action="store_true",
        help="both hosts run on all of them, in place of half of them each",
    )
    add("--timeout", type=seconds, default=600.0, help="seconds for each part (600)")
    add_options(result)
    return result  # fmt: skip


def settings(options: argparse.Namespace) -> Settings:
    """Checked."""
    unknown = [name for name in options.peers if name not in PEERS]
    if unknown:
        raise InvalidArgument(f"--peers {','.join(unknown)}: allowed: {','.join(PEERS)}, none")
    if min(options.repeat, options.warmup) < 1:
        raise InvalidArgument("--repeat and --warmup: at least 1 is needed")
    if not options.links:
        raise InvalidArgument("--links: at least one is needed; 0 is one that is not limited")
    cells.check(options.links, options.sizes, options.connections)
    for number in options.ranks:
        if number % 2:
            raise InvalidArgument(f"--ranks {number}: an even number is needed, half on each host")
        shape = (options.tokens, options.hidden, options.experts, options.topk)
        Case("hosts", number, *shape).check()
    names = ("links", "sizes", "connections", "peers", "ranks")
    given: dict[str, Any] = {name: getattr(options, name) for name in Settings._fields}
    return Settings(**given | {name: tuple(given[name]) for name in names})
