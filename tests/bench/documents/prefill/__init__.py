"""``tests/bench prefill``: scatter and gather of a prefill from Python, beside gloo and copies.

R processes of this machine have T tokens each, with K different experts that are drawn uniformly.
They make a routing, scatter their rows, and gather bf16 rows back. Beside it: gloo's
all_to_all_single, for which rows are packed before, and added up afterwards by torch; and the
floor, which copies as many bytes as this rank receives into a slab, and from there to the result:
two passes over memory, as a scatter or a gather makes. All take turns, so that a busy machine is
busy for all of them. Rows of fp8 bring a float32 scale per 128 values. Results are compared before
anything is timed.

Then every rank is a host of its own, by TCP over loopback, and bytes between hosts are counted.
Last, routings are held, and memory is counted. A shape for which memory lacks is named.
"""

from __future__ import annotations

import argparse
import itertools
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from moewire.bench import idle, launch, report
from moewire.bench.arguments import names, numbers, seconds
from moewire.errors import InvalidArgument

from ..result import add_options, end_at_sigterm, show, write
from . import markdown, rank
from .shape import DTYPES, Shape


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark and prints it; the exit status."""
    options = _parser().parse_args(argv)
    shapes = list(_shapes(options))
    end_at_sigterm()  # ranks end, too
    result = _measure(options, shapes)
    tables = markdown.tables(result)
    show(options, tables.rstrip("\n"))
    write(options, result, tables)
    return 0


def _parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="tests/bench prefill",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = result.add_argument
    add("--ranks", type=numbers, default=[2, 4], help="R (2,4)")
    add("--tokens", type=numbers, default=[1024, 4096], help="T of each rank (1024,4096)")
    add("--experts", type=numbers, default=[64, 256], help="E (64,256)")
    add("--hidden", type=int, default=7168, help="H, a multiple of 128 (7168)")
    add("--topk", type=int, default=8, help="K (8)")
    add("--dtypes", type=names, default=list(DTYPES), help="bf16, fp8 or both (default)")
    add("--repeat", type=int, default=20, help="turns of each shape (20)")
    add("--held", type=int, default=1000, help="routings that are held at a time, 0: none (1000)")
    add("--timeout", type=seconds, default=600.0, help="seconds for each shape (600)")
    add_options(result)
    return result


def _shapes(options: argparse.Namespace) -> Iterator[Shape]:
    """Every combination.

    Raises:
        InvalidArgument: one of them cannot be.
    """
    for name, least in (("repeat", 1), ("held", 0)):
        if getattr(options, name) < least:
            raise InvalidArgument(f"--{name} {getattr(options, name)}: allowed: {least} and more")
    for ranks, tokens, experts, dtype in itertools.product(
        options.ranks, options.tokens, options.experts, options.dtypes
    ):
        shape = Shape(ranks, tokens, experts, options.hidden, options.topk, dtype)
        shape.check()
        yield shape


def _measure(options: argparse.Namespace, shapes: Sequence[Shape]) -> dict[str, Any]:
    quiet = idle.wait(options.idle_wait)
    rows, absent = [], {}
    for shape in shapes:
        lacking = shape.lacking_memory()
        if lacking:
            absent[shape.name] = lacking
            continue
        show(options, shape.name)
        rows.append(_one(shape, options))
    return {
        "schema": report.SCHEMA,
        "machine": report.machine(),
        "idle": quiet,
        "repeat": options.repeat,
        "absent": absent,
        "rows": rows,
    }


def _one(shape: Shape, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="moewire-bench-") as folder:
        key = secrets.token_hex(32)
        work = [
            (shape, options.repeat, options.held, number, folder, key)
            for number in range(shape.ranks)
        ]
        return rank.summary(shape, launch.run_all(rank.measure, work, options.timeout))
