"""The options of ``moewire bench``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, cast

from .._config.tuning import HUGE_PAGES, NUMA, STORES, Tuning, native
from ..errors import InvalidArgument
from .arguments import names, numbers, seconds

# Peers by name: the module that opens each.
PEERS = {"gloo": "moewire.bench.gloo"}


def parser(
    description: str | None, prog: str = "moewire bench", peers: Mapping[str, str] = PEERS
) -> argparse.ArgumentParser:
    """Shapes may be lists: 2,4,8; their combinations are measured."""
    result = argparse.ArgumentParser(
        prog=prog,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_shapes(result.add_argument_group("what to measure"))
    _add_how(result.add_argument_group("how"), peers)
    _add_output(result.add_argument_group("output"))
    return result


def _add_shapes(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--quick", action="store_true", help="two small shapes and ten repetitions")
    add("--ranks", type=numbers, help="processes (R), a list (2)")
    add("--tokens", type=numbers, help="tokens per rank (T = M), a list (128)")
    add("--hidden", type=numbers, help="values per token (H), a list (7168)")
    add("--experts", type=numbers, help="experts in all (E), a list (64)")
    add("--topk", type=numbers, help="selections per token (K), a list (8)")
    add("--dtype", type=names, help="bf16, fp8 or both (bf16)")
    add("--slots", type=int, default=2, help="operations in flight, and slabs of the floor (2)")


def _add_how(group: argparse._ArgumentGroup, peers: Mapping[str, str]) -> None:
    add = group.add_argument
    add("--repeat", type=int, help="measured repetitions (30; 10 with --quick)")
    add("--warmup", type=int, default=5, help="repetitions before them (5)")
    add("--peers", type=names, default=["gloo"], help=f"of {','.join(peers)}, or none (gloo)")
    add("--warm", action="store_true", help="pairs without rest, too")
    add("--vector-width", type=int, default=0, help="of Moewire's kernels: 16, 32, 64; 0: widest")
    _add_tuning(add)
    add("--floor", choices=("c", "numpy"), default="c", help="which copy-only floor (c)")
    add("--seed", type=int, default=1, help="of the routing (1)")
    add("--timeout", type=seconds, default=600.0, help="seconds for one shape (600)")
    add("--idle-wait", type=seconds, default=60.0, help="seconds to wait for a quiet machine (60)")


def _add_tuning(add: Any) -> None:
    """Choices of Moewire's buffers; None is ``Buffer``'s own default."""
    add("--stores", choices=list(STORES), help="how Moewire stores rows (auto)")
    add("--prefetch", type=int, help="rows that Moewire asks for ahead of use (none)")
    add("--threads", type=int, help="threads of a rank that place and reduce rows (1)")
    add("--huge-pages", choices=list(HUGE_PAGES), help="of Moewire's memory (never)")
    add("--numa", choices=list(NUMA), help="where Moewire's memory lies (none)")
    add("--spin-us", type=int, help="how long Moewire's waits are awake before they sleep")


def tuning(options: argparse.Namespace) -> Tuning:
    """What was asked for, as ``Buffer`` takes it."""
    given: dict[str, Any] = {
        "stores": options.stores,
        "prefetch": options.prefetch,
        "num_threads": options.threads,
        "huge_pages": options.huge_pages,
        "numa": options.numa,
        "spin_us": options.spin_us,
    }
    return cast("Tuning", {name: value for name, value in given.items() if value is not None})


def _add_output(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--json", metavar="FILE", help="write everything as JSON; - for standard output")
    add("--plot", metavar="FILE", help="write a chart, .png or .svg (needs matplotlib)")
    add("--no-chart", action="store_true", help="no chart of text below the tables")


def complete(options: argparse.Namespace, peers: Mapping[str, str] = PEERS) -> None:
    """Fills defaults that depend on other options; refuses what makes no sense."""
    if options.repeat is None:
        options.repeat = 10 if options.quick else 30
    if min(options.repeat, options.warmup, options.slots) < 1:
        raise InvalidArgument("--repeat, --warmup and --slots: at least 1 is needed")
    native(tuning(options))  # refuses what a buffer would
    names = [name for name in options.peers if name != "none"]
    unknown = [name for name in names if name not in peers]
    if unknown:
        raise InvalidArgument(f"--peers {','.join(unknown)}: allowed: {','.join(peers)}, none")
    options.peers = {name: peers[name] for name in names}
    for dtype in options.dtype or ():
        if dtype not in ("bf16", "fp8"):
            raise InvalidArgument(f"--dtype {dtype}: allowed: bf16, fp8")
    if options.plot and not options.plot.endswith((".png", ".svg")):
        raise InvalidArgument(f"--plot {options.plot}: a name ending in .png or .svg is needed")
