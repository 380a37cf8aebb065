"""What a benchmark says and where: the options for it, its progress, its numbers and tables."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from typing import Any

from moewire.bench.arguments import seconds


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that every benchmark has: how long to wait for a quiet machine, and files."""
    add = parser.add_argument
    add("--idle-wait", type=seconds, default=60.0, help="seconds to wait for a quiet machine (60)")
    add("--markdown", metavar="FILE", help="write the tables of the documentation")
    add("--json", metavar="FILE", help="write all numbers as JSON; - for standard output")


def end_at_sigterm() -> None:
    """From now on SIGTERM raises SystemExit, which ends child processes and removes folders."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def show(options: argparse.Namespace, text: str) -> None:
    """Prints a line or a table at once; nothing where standard output is for the JSON."""
    if options.json != "-":
        print(text, flush=True)


def write(options: argparse.Namespace, result: dict[str, Any], tables: str) -> None:
    """Writes what ``--json`` and ``--markdown`` ask for.

    Args:
        options: of a parser with ``add_options``.
        result: all numbers.
        tables: the same as Markdown.

    Raises:
        OSError: a file cannot be written.
    """
    numbers = json.dumps(result, indent=2) + "\n"
    if options.json == "-":
        sys.stdout.write(numbers)
    elif options.json:
        _save(options.json, numbers)
    if options.markdown:
        _save(options.markdown, tables)


def _save(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
