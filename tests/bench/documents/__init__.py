"""What the documentation's tables say, measured again. See ``moewire bench --help`` for the ways.

    python tests/bench --tables main,fp8 --peers gloo,openmpi
    python tests/bench hosts --help
    python tests/bench store --help
    python tests/bench prefill --help

Options are those of ``moewire bench``. More peers can be asked for, which are installed into the
user's cache. Without a shape all tables are measured, which takes long.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from moewire import bench
from moewire._base import stdout
from moewire.bench import cases
from moewire.bench import options as _options
from moewire.bench.arguments import names
from moewire.cli import status

from . import overlap, shapes

SOURCES = Path(__file__).with_name("native")
PEERS = {
    **_options.PEERS,
    "openmpi": f"{__name__}.peers.openmpi",
    "mooncake": f"{__name__}.peers.mooncake",
}
_SHAPE = ("quick", "ranks", "tokens", "hidden", "experts", "topk", "dtype")


def command() -> int:
    """The exit status of this process, as the command ``moewire`` ends."""
    return stdout.run(lambda: status("tests/bench", main))


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and prints; the exit status."""
    words = sys.argv[1:] if argv is None else list(argv)
    if words[:1] == ["hosts"]:
        from . import hosts

        return hosts.main(words[1:])
    if words[:1] == ["store"]:
        from . import store

        return store.main(words[1:])
    if words[:1] == ["prefill"]:
        from . import prefill

        return prefill.main(words[1:])
    parser = _options.parser(__doc__, "tests/bench", PEERS)
    parser.add_argument(
        "--tables", type=names, help=f"some of {','.join(shapes.NAMES)} (all of them)"
    )
    options = parser.parse_args(words)
    _options.complete(options, PEERS)
    if options.tables is None and any(getattr(options, name) for name in _SHAPE):
        return bench.run(options, cases.chosen(options))
    todo, late = shapes.chosen(shapes.NAMES if options.tables is None else options.tables)
    more = {"overlap": partial(overlap.measure, late)} if late else {}
    return bench.run(options, cases.checked(todo), more)
