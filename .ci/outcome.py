"""What a step is, how steps end, and how that is told."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lanes import Lanes


class StepError(Exception):
    """A step did not pass; the text says what to look at."""


class StepSkipped(Exception):
    """A step could not be taken on this machine; the text says what is missing."""


@dataclass
class Step:
    """A step; its tests run in a tier.

    Neighbours with the same `beside` run at the same time, as commands of their own. A `patient`
    one takes what the others leave of the processors: nothing in it has a bound of time, but
    those that only end what hangs.
    """

    name: str
    action: Callable[[], None]
    needs: tuple[str, ...] = field(default=())
    tier: str = "check"
    beside: str = ""
    patient: bool = False


@dataclass
class Outcome:
    """How a step ended, after how long, and why, where it was skipped.

    `cpu` is what its commands took of the processors.
    """

    result: str
    seconds: float = 0.0
    cpu: float = 0.0
    reason: str = ""


def run_step(step: Step) -> Outcome:
    """Runs one step."""
    result, reason, begin, cpu = "passed", "", time.monotonic(), cpu_seconds()
    os.environ["MOEWIRE_TIER"] = step.tier
    try:
        step.action()
    except StepSkipped as err:
        print(f"skipped {step.name}: {err}", flush=True)
        result, reason = "skipped", str(err)
    except StepError as err:
        print(f"FAILED {step.name}: {err}", flush=True)
        result = "FAILED"
    return Outcome(result, time.monotonic() - begin, cpu_seconds() - cpu, reason)


def cpu_seconds() -> float:
    """What all commands that have ended took of the processors."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_apart(step: Step, program: Sequence[str]) -> tuple[Outcome, str]:
    """Runs one step as a command of its own; its outcome, and what it wrote."""
    begin = time.monotonic()
    last = ("nice", "-n", NICENESS) if step.patient else ()
    process = subprocess.Popen(
        [*last, *program, "--quiet", step.name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    with process.stdout:
        text = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    outcome = Outcome("passed" if process.returncode == 0 else "FAILED")
    outcome.seconds, outcome.cpu = time.monotonic() - begin, used.ru_utime + used.ru_stime
    skipped = re.search(rf"(?m)^skipped {re.escape(step.name)}: (.*)$", text)
    if outcome.result == "passed" and skipped:
        outcome.result, outcome.reason = "skipped", skipped[1]
    return outcome, text


def not_run(broken: Outcome | None) -> str:
    """The line that says so; nothing for a step that was run."""
    return f"not run: {broken.reason}\n" if broken else ""


class Runner:
    """Runs steps, says which is under way, and keeps their outcomes by name."""

    def __init__(self, steps: list[Step], quiet: bool, program: Sequence[str] = ()) -> None:
        self.steps, self.quiet, self.program = steps, quiet, program
        self.outcome: dict[str, Outcome] = {}
        self.written: dict[str, str] = {}  # of steps that ran beside others
        self.begin = time.monotonic()

    def run(self) -> dict[str, Outcome]:
        at = 0
        while at < len(self.steps):
            end = at + 1
            if self.program and self.steps[at].beside:
                while end < len(self.steps) and self.steps[end].beside == self.steps[at].beside:
                    end += 1
            self.run_group(at, self.steps[at:end])
            at = end
        return {step.name: self.outcome[step.name] for step in self.steps}

    def run_group(self, at: int, steps: list[Step]) -> None:
        """One step, its output as it comes; or several at once, each one's when it has ended."""
        if len(steps) == 1:
            self.tell(at, steps[0])
            broken = self.broken(steps[0])
            self.outcome[steps[0].name] = broken or run_step(steps[0])
            print(not_run(broken), end="", flush=True)
            return
        if not self.quiet:
            print(f"\nside by side: {', '.join(step.name for step in steps)}", flush=True)
        lanes = Lanes(steps, self.run_beside)
        with lanes.running(AT_ONCE):
            for i, step in enumerate(steps):
                lanes.wait_for(step)
                self.tell(at + i, step)
                print(self.written[step.name], end="", flush=True)
                if self.outcome[step.name].result == "FAILED":
                    print(f"FAILED {step.name}", flush=True)

    def run_beside(self, step: Step) -> None:
        """One step of a group; those of the group that it needs have ended."""
        broken = self.broken(step)
        if broken:
            self.outcome[step.name], self.written[step.name] = broken, not_run(broken)
            return
        self.say(f"{step.name} begins")
        outcome, text = run_apart(step, self.program)
        self.outcome[step.name], self.written[step.name] = outcome, text
        self.say(f"{step.name} {outcome.result}, {outcome.seconds:.1f} s")

    def broken(self, step: Step) -> Outcome | None:
        """That a step is not run, if what it needs has not passed."""
        known = self.outcome
        wrong = [name for name in step.needs if name in known and known[name].result != "passed"]
        return Outcome("not run", reason=f"{', '.join(wrong)} did not pass") if wrong else None

    def tell(self, at: int, step: Step) -> None:
        """Which step of how many, and for how long all of it has been running."""
        if self.quiet:
            return
        heading = f"=== [{at + 1}/{len(self.steps)}, {self.since()}] {step.name}"
        said = (step.action.__doc__ or "").split("\n")[0]
        print(f"\n{heading}: {said}".rstrip(": "), flush=True)

    def say(self, text: str) -> None:
        """Tells what happens beside the step that prints next."""
        if not self.quiet:
            print(f"--- [{self.since()}] {text}", flush=True)

    def since(self) -> str:
        """For how long all of it has been running."""
        minutes, seconds = divmod(int(time.monotonic() - self.begin), 60)
        return f"{minutes}m{seconds:02d}s"


# How many steps run at once, one process each, for two cores. With a third one tests ran into
# their time limits, also where it was a suite that mostly waits. A patient one takes what these
# leave, and a little of what all want: with the last priority it might never end.
AT_ONCE = 2
NICENESS = "5"


def run_steps(steps: list[Step], quiet: bool, program: Sequence[str] = ()) -> dict[str, Outcome]:
    """Runs the steps; the outcome of each, by name."""
    return Runner(steps, quiet, program).run()


def summary(outcome: dict[str, Outcome], seconds: float, slowest: Sequence[str] = ()) -> str:
    """What became of the steps, as text. Skipped ones are not among the passed."""
    lines = ["", "=== summary"]
    for name, o in outcome.items():
        cpu = f"{o.cpu:6.0f} s cpu" if o.cpu else " " * 12
        line = f"{o.seconds:8.1f} s  {cpu}  {o.result:8} {name}"
        lines.append(f"{line}: {' '.join(o.reason.split())}" if o.reason else line)
    if slowest:
        lines += ["the slowest tests", *slowest]
    lines.append(f"{seconds:8.1f} s  in all")
    results = [o.result for o in outcome.values()]
    passed, skipped = results.count("passed"), results.count("skipped")
    rest = f", {skipped} skipped" if skipped else ""
    lines.append(f"steps: {passed} passed, {len(results) - passed - skipped} failed{rest}")
    return "\n".join(lines)
