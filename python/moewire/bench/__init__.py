"""``moewire bench``: what dispatch and combine cost on this machine, beside a copy floor.

One machine, R processes. Each iteration measures Moewire, the copy-only floor and the peers
one after another, so that a disturbance hits all of them; a sample is the time from the first
rank's start to the last rank's end.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Sequence

from ..errors import InvalidArgument


def parser() -> argparse.ArgumentParser:
    """The options; every default is the shape that the documentation quotes."""
    result = argparse.ArgumentParser(
        prog="moewire bench",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    result.add_argument("--ranks", type=int, default=2, help="processes (R)")
    result.add_argument("--tokens", type=int, default=128, help="tokens per rank (T = M)")
    result.add_argument("--hidden", type=int, default=7168, help="values per token (H)")
    result.add_argument("--experts", type=int, default=64, help="experts in all (E)")
    result.add_argument("--topk", type=int, default=8, help="selections per token (K)")
    result.add_argument("--dtype", choices=("bf16", "fp8"), default="bf16", help="of the rows")
    result.add_argument("--iters", type=int, default=30, help="measured iterations")
    result.add_argument("--warmup", type=int, default=5, help="iterations before them")
    result.add_argument(
        "--peers", choices=("gloo", "none"), default="gloo", help="measured beside Moewire"
    )
    result.add_argument("--seed", type=int, default=1, help="of the routing")
    result.add_argument("--timeout", type=float, default=600.0, help="seconds for everything")
    result.add_argument("--json", action="store_true", help="print JSON")
    return result


def check(options: argparse.Namespace) -> None:
    """Refuses what the ranks would only refuse after they were started."""
    if options.ranks < 1 or options.experts % options.ranks:
        raise InvalidArgument(
            f"--experts {options.experts}: a multiple of --ranks {options.ranks} is needed"
        )
    if not 1 <= options.topk <= options.experts:
        raise InvalidArgument(f"--topk {options.topk}: 1 to --experts {options.experts} allowed")
    if min(options.tokens, options.iters) < 1 or options.warmup < 1:
        raise InvalidArgument("--tokens, --iters and --warmup: at least 1 is needed")
    block = 128 if options.dtype == "fp8" else 8
    if options.hidden < block or options.hidden % block:
        raise InvalidArgument(f"--hidden {options.hidden}: a multiple of {block} is needed")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark and prints it; the exit status."""
    options = parser().parse_args(argv)
    check(options)
    missing = [name for name in ("numpy", "torch") if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"moewire bench: it needs {', '.join(missing)}, not installed in {sys.prefix}.\n"
            f"Install with: {sys.executable} -m pip install {' '.join(missing)}",
            file=sys.stderr,
        )
        return 1
    from . import launch, report

    result = report.summarise(options, launch.run(options))
    print(json.dumps(result, indent=2) if options.json else report.text(result))
    return 0
