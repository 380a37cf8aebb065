"""``tests/bench hosts``: what lies between two hosts, beside plain sockets and others.

Two network namespaces of this machine stand for two hosts, with a virtual cable between them that
may be limited to the rate of a real one (tbf). Nothing leaves the machine. It needs root, and
removes what it made, however it ends.

Writes: several sizes from one host to the other, by plain sockets (in three ways, of which the
fastest is the floor), Moewire's fabric (with digest and encrypted, called from C; digest from
Python, too), gloo, and Mooncake's transfer engine. Exchanges: dispatch and combine of as many
ranks on each host, beside a plain exchange of the same bytes and gloo, with the bytes that the
interface counted. In each repetition all are measured in turn. Bytes and results are compared
before anything is timed.

Each host has half of the machine's processors (--share-processors: both run on all of them). So an
unlimited cable shows what a byte costs in processor time, and a limited one whether the link is
filled.
"""

from __future__ import annotations

import argparse
import importlib.util
import secrets
import tempfile
from collections.abc import Sequence
from functools import partial
from typing import Any

from moewire.errors import MoewireError

from ..result import end_at_sigterm, show, write
from . import network
from . import options as _options
from .place import Settings


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark and prints it; the exit status."""
    options = _options.parser(__doc__).parse_args(argv)
    settings = _options.settings(options)
    missing = [name for name in ("numpy", "torch") if importlib.util.find_spec(name) is None]
    reason = f"it needs {', '.join(missing)}: pip install them" if missing else network.lacking()
    if reason:
        raise MoewireError(reason)
    end_at_sigterm()  # namespaces are removed, too
    result = _measure(options, settings)
    write(options, result, _markdown(result))
    return 0


def _markdown(result: dict[str, Any]) -> str:
    from . import markdown

    written = result["writes"].get("cells", [])
    parts = (markdown.writes(written), markdown.costs(written))
    return "\n\n".join([*parts, markdown.exchanges(result["exchanges"])]) + "\n"


def _measure(options: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    from moewire.bench import idle, report, tables

    from . import start
    from . import tables as own

    say = partial(show, options)
    quiet = idle.wait(options.idle_wait)
    result: dict[str, Any] = {
        "schema": report.SCHEMA,
        "machine": report.machine(),
        "settings": settings._asdict(),
        "idle": quiet,
        "writes": {},
        "exchanges": [],
    }

    say(tables.head(result))
    say(tables.idle(quiet))
    with network.Cable() as cable, tempfile.TemporaryDirectory(prefix="moewire-bench-") as folder:
        key = secrets.token_hex(32)
        if settings.sizes and settings.connections:
            result["writes"] = start.writes(cable, folder, settings, key, options.timeout)
            for cell in result["writes"]["cells"]:
                say(own.cell(cell))
            for peer, reason in result["writes"]["peer_failures"].items():
                say(f"{peer} was not measured: {reason}")
        for number in settings.ranks:
            found = start.exchanges(cable, folder, settings, key, number, options.timeout)
            result["exchanges"].append(found)
            say(own.exchange(found))
    return result
