"""Runs commands within one budget of time, and keeps what each of them reported."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# How programs end. gpubench and cuda_host_cost.py end with 3 where the device has too little
# memory or torch has no CUDA.
OUTCOMES = {0: "passed", 3: "does not fit", None: "out of time"}
FINE = ("passed", "does not fit", "not there")
# For stacks to be written once a program is told to end, and for it to be gone.
GRACE_SECONDS = 5.0
SAID_CHARACTERS = 6000


@dataclass(frozen=True)
class Suite:
    """One command. ``seconds``: of the budget, at most."""

    name: str
    words: list[str]
    seconds: float
    env: dict[str, str] = field(default_factory=dict)
    cwd: Path = Path()
    tests: bool = True  # else it prints one JSON object
    lacks: str = ""  # what it needs and is not here: then it is not run


@dataclass
class Row:
    """How it ended, and what it reported."""

    name: str
    outcome: str  # failed, or one of OUTCOMES; "not there": what it needs is not installed
    seconds: float = 0.0
    tests: dict[str, int] = field(default_factory=dict)
    said: str = ""
    result: dict[str, Any] = field(default_factory=dict)


class Run:
    """Runs suites one after the other; each has its share, and what is left of all.

    Everything that they write goes to ``log``, too.
    """

    def __init__(self, budget_seconds: float, env: dict[str, str], log: Path) -> None:
        self._end = time.monotonic() + budget_seconds
        self._env = env
        self._log = log
        log.write_text("")

    def rows(self, suites: Iterable[Suite]) -> Iterable[Row]:
        for suite in suites:
            yield self.row(suite)

    def row(self, suite: Suite) -> Row:
        if suite.lacks:
            return self._reported(Row(suite.name, "not there", said=suite.lacks))
        begin = time.monotonic()
        status, text = self._command(suite)
        seconds = round(time.monotonic() - begin, 1)
        row = Row(suite.name, OUTCOMES.get(status, "failed"), seconds)
        if suite.tests:
            row.tests = counts(text)
            if row.outcome == "passed" and not row.tests["passed"]:
                row.outcome = "failed"  # a suite that skips everything has shown nothing
        elif row.outcome == "passed":
            row.outcome, row.result = parsed(text)
        if row.outcome != "passed":
            row.said = text[-SAID_CHARACTERS:]
        return self._reported(row)

    def _reported(self, row: Row) -> Row:
        print(row.said, f"{row.outcome:12} {row.name}", sep="\n", flush=True)
        return row

    def _command(self, suite: Suite) -> tuple[int | None, str]:
        """Its status, None if it ran out of time, and its output."""
        left = min(suite.seconds, self._end - time.monotonic())
        if left < 1:
            return None, "no time was left for it"
        print("+", *suite.words, flush=True)
        try:
            status, text = command(suite.words, {**self._env, **suite.env}, suite.cwd, left)
        except OSError as err:
            status, text = 127, str(err)
        with self._log.open("a") as log:
            log.write(f"===== {suite.name}: {' '.join(suite.words)}\n{text}\n")
        return status, text


def command(
    words: list[str], env: dict[str, str], cwd: Path, seconds: float
) -> tuple[int | None, str]:
    """Runs it and all that it starts; at the end of its time they are stopped.

    A process that cannot be ended, for example in a driver, is left behind without a wait.
    """
    child = started(words, env, cwd)
    try:
        text, _ = child.communicate(timeout=seconds)
        return child.returncode, text
    except subprocess.TimeoutExpired:
        return None, stopped(child)
    finally:
        _signal(child, signal.SIGKILL)  # what it has started may be left


def started(words: list[str], env: dict[str, str], cwd: Path) -> subprocess.Popen[str]:
    """A program in a group of its own."""
    return subprocess.Popen(
        words, cwd=cwd, env={**env, "GOTRACEBACK": "all", "PYTHONFAULTHANDLER": "1"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", start_new_session=True,
    )  # fmt: skip


def stopped(child: subprocess.Popen[str]) -> str:
    """Ends it and all that it has started; what they wrote, with their stacks.

    SIGABRT makes Go programs write every goroutine's, and Python that of every thread.
    """
    text = ""
    for number in (signal.SIGABRT, signal.SIGKILL):
        _signal(child, number)
        try:
            return child.communicate(timeout=GRACE_SECONDS)[0]
        except subprocess.TimeoutExpired as late:  # it has what came until now, in bytes
            text = (late.output or b"").decode(errors="replace")
    return f"{text}\nit cannot be ended"


def _signal(child: subprocess.Popen[str], number: int) -> None:
    try:
        os.killpg(child.pid, number)
    except ProcessLookupError:
        return


def counts(text: str) -> dict[str, int]:
    """Tests that passed, failed and were skipped, as `go test -v` or pytest write it."""
    found = {}
    for word, mark in (("passed", "PASS"), ("failed", "FAIL"), ("skipped", "SKIP")):
        found[word] = len(re.findall(rf"^ *--- {mark}: ", text, re.MULTILINE))
        last = re.findall(rf"^=*[^\n]*?\b(\d+) {word}\b[^\n]* in [\d.]+s", text, re.MULTILINE)
        if last:
            found[word] += int(last[-1])
    return found


def parsed(text: str) -> tuple[str, dict[str, Any]]:
    """The outcome and the object of a program that prints one, on its last line."""
    lines = text.strip().splitlines()
    try:
        result = json.loads(lines[-1]) if lines else None
    except ValueError:
        result = None
    return ("passed", result) if isinstance(result, dict) else ("failed", {})
