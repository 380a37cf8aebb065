"""The command ``moewire``."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence

from ._base import stdout
from ._version import __version__
from .errors import MoewireError

# Name -> (module with main(arguments) -> int, what it does). Loaded when asked for.
COMMANDS = {
    "demo": ("moewire.demo", "generate text with a MoE model spread over several processes"),
    "doctor": ("moewire.doctor", "say what this machine offers, and why something is absent"),
    "top": ("moewire.top", "watch the ranks that run on this machine"),
    "trace": ("moewire.trace", "merge traces, or take one of ranks that run here"),
    "store": (
        "moewire.store.command",
        "serve blocks of KV caches to engines, and look at a server",
    ),
    "bench": ("moewire.bench", "time dispatch and combine against a copy-only floor"),
}


def _parser() -> argparse.ArgumentParser:
    listing = "\n".join(f"  {name:8} {text}" for name, (_, text) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="moewire",
        description="Expert-parallel dispatch and combine for Mixture-of-Experts models.",
        epilog=f"commands:\n{listing}\n\n'moewire COMMAND --help' says more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"moewire {__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND")
    rest = parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    rest.required = False  # as in later versions of Python: users do not see the name
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: the command and its arguments; None: those of this process.

    Returns:
        The exit status: 0: done; 1: failed; 130: interrupted; 141: the reader of the output is
            gone.
    """
    return stdout.run(lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    options = _parser().parse_args(argv)
    module = importlib.import_module(COMMANDS[options.command][0])
    return status(f"moewire {options.command}", lambda: int(module.main(options.arguments) or 0))


def status(name: str, command: Callable[[], int]) -> int:
    """The exit status of a command; an error of Moewire's is printed as one line."""
    try:
        return command()
    except MoewireError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
