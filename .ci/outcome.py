"""What a step is, how steps end, and how that is told."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


class StepError(Exception):
    """A step did not pass; the text says what to look at."""


class StepSkipped(Exception):
    """A step could not be taken on this machine; the text says what is missing."""


@dataclass
class Step:
    name: str
    action: Callable[[], None]
    needs: tuple[str, ...] = field(default=())


@dataclass
class Outcome:
    """How a step ended, after how long, and why, where it was skipped."""

    result: str
    seconds: float = 0.0
    reason: str = ""


def run_step(step: Step) -> Outcome:
    """Runs one step."""
    result, reason, begin = "passed", "", time.monotonic()
    try:
        step.action()
    except StepSkipped as err:
        print(f"skipped {step.name}: {err}", flush=True)
        result, reason = "skipped", str(err)
    except StepError as err:
        print(f"FAILED {step.name}: {err}", flush=True)
        result = "FAILED"
    return Outcome(result, time.monotonic() - begin, reason)


def run_steps(steps: list[Step], quiet: bool) -> dict[str, Outcome]:
    """Runs the steps; the outcome of each, by name."""
    outcome: dict[str, Outcome] = {}
    for step in steps:
        broken = [n for n in step.needs if n in outcome and outcome[n].result != "passed"]
        if not quiet:
            print(f"\n=== {step.name}: {step.action.__doc__ or ''}".rstrip(": "), flush=True)
        if broken:
            print(f"not run: {', '.join(broken)} did not pass", flush=True)
            outcome[step.name] = Outcome("not run")
            continue
        outcome[step.name] = run_step(step)
    return outcome


def summary(outcome: dict[str, Outcome]) -> str:
    """What became of the steps, as text. Skipped ones are not among the passed."""
    lines = ["", "=== summary"]
    for name, o in outcome.items():
        line = f"{o.seconds:8.1f} s  {o.result:8} {name}"
        lines.append(f"{line}: {' '.join(o.reason.split())}" if o.reason else line)
    lines.append(f"{sum(o.seconds for o in outcome.values()):8.1f} s  in all")
    results = [o.result for o in outcome.values()]
    passed, skipped = results.count("passed"), results.count("skipped")
    told = f", {skipped} skipped" if skipped else ""
    lines.append(f"steps: {passed} passed, {len(results) - passed - skipped} failed{told}")
    return "\n".join(lines)
