"""``moewire bench``: what dispatch and combine cost on this machine, beside a copy floor.

One machine, R processes. Each repetition measures Moewire, the copy-only floor and the peers
one after another, so that a disturbance hits all of them; a sample is the time from the first
rank's start to the last rank's end. Without options one shape is measured. --quick takes about 20
seconds, and waits for a quiet machine as the others do.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import MoewireError
from . import cases, chart, idle, report, tables
from . import options as _options

if TYPE_CHECKING:
    from .worker import Settings


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark and prints it; the exit status."""
    options = _options.parser(__doc__).parse_args(argv)
    _options.complete(options)
    return run(options, cases.chosen(options))


# What is measured after the cases: a part of the result, from settings, options and what prints.
More = Callable[["Settings", argparse.Namespace, Callable[[str], None]], Any]


def run(
    options: argparse.Namespace, todo: list[cases.Case], more: Mapping[str, More] | None = None
) -> int:
    """Measures cases, then what has a name in ``more``; prints; the exit status."""
    missing = [name for name in ("numpy", "torch") if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"moewire bench: it needs {', '.join(missing)}, not installed in {sys.prefix}.\n"
            f"Install with: {sys.executable} -m pip install {' '.join(missing)}",
            file=sys.stderr,
        )
        return 1
    if options.plot:  # refused before an hour of measuring, not after it
        chart.need_matplotlib()
        chart.need_lines(todo)
    result = _measure(options, todo, more or {})
    _show(options, result)
    return 1 if any("failure" in case for case in result["cases"]) else 0


def _measure(
    options: argparse.Namespace, todo: list[cases.Case], more: Mapping[str, More]
) -> dict[str, Any]:
    from . import launch
    from .worker import Settings

    given = vars(options) | {"tuning": _options.tuning(options)}
    settings = Settings(**{name: given[name] for name in Settings._fields})
    result: dict[str, Any] = {
        "schema": report.SCHEMA,
        "machine": report.machine(),
        "settings": settings._asdict(),
        "cases": [],
    }
    say = _teller(options)
    say(tables.head(result))
    for number, case in enumerate(todo, 1):
        tables.progress(f"[{number}/{len(todo)}] {case.title}")
        found = _one(case, settings, options)
        result["cases"].append(found)
        text = found.get("failure")
        say(tables.failed(case.title, text) if text else tables.case(case.title, found))
        say(tables.idle(found["idle"]))
    if todo:
        tables.progress("overheads")
        result["overhead_us"] = launch.run_overhead(options.timeout)
        say(tables.overheads(result["overhead_us"]))
    for name, measure in more.items():
        result[name] = measure(settings, options, say)
    return result


def _one(case: cases.Case, settings: Any, options: argparse.Namespace) -> dict[str, Any]:
    """One case; a failure is part of the result, and the next case is measured."""
    from . import launch

    kept, dropped = _that_fit(case, settings.peers)
    quiet = idle.wait(options.idle_wait)
    try:
        if kept is None:
            raise MoewireError(dropped[""])
        ranks = launch.run(case, settings._replace(peers=kept), options.timeout)
    except MoewireError as error:
        return {**case._asdict(), "idle": quiet, "failure": str(error)}
    found = report.summarise(case, ranks)
    found["peer_failures"] |= dropped
    return {**found, "idle": quiet}


def _that_fit(
    case: cases.Case, peers: dict[str, str]
) -> tuple[dict[str, str] | None, dict[str, str]]:
    """The first peers that memory suffices for, and why the others are left out."""
    available, names = cases.available_bytes(), list(peers)
    dropped: dict[str, str] = {}
    for count in range(len(peers), -1, -1):
        needed = cases.resident_bytes(case, names[:count])
        if needed <= available:
            return {name: peers[name] for name in names[:count]}, dropped
        reason = f"it needs about {needed / 1e9:.0f} GB, {available / 1e9:.0f} GB are available"
        dropped[names[count - 1] if count else ""] = reason
    return None, dropped


def _teller(options: argparse.Namespace) -> Any:
    """Prints tables; where standard output is for the JSON, nothing."""
    return (lambda text: None) if options.json == "-" else (lambda text: print(text, flush=True))


def _show(options: argparse.Namespace, result: dict[str, Any]) -> None:
    tables.progress("")
    drawn = chart.panels(case for case in result["cases"] if "steps" in case)
    if not options.no_chart:
        for panel in drawn:
            _teller(options)(chart.text(panel))
    if options.json == "-":
        print(json.dumps(result, indent=2))
    elif options.json:
        with open(options.json, "w") as file:
            json.dump(result, file, indent=2)
    if options.plot:
        chart.save(drawn, options.plot)
