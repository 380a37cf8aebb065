"""Runs `go test` and tells of it as it goes: a line per package, and what a failed test said."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from record import LEFT, Test

MODULE = "github.com/moewire/moewire/"


@dataclass
class Outcomes:
    """What the events of `go test -json` say."""

    tests: list[Test] = field(default_factory=list)
    said: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    packages: int = 0
    show: Callable[[str], None] = print

    def line(self, text: str) -> None:
        """One line of the output: an event, or what the go command says besides."""
        try:
            event = json.loads(text)
        except ValueError:
            self.show(text.rstrip("\n"))
            return
        package, test = str(event.get("Package", "")).removeprefix(MODULE), event.get("Test", "")
        action = event["Action"]
        if action == "build-output":
            self.show(event["Output"].rstrip("\n"))
        elif action == "output":
            self.said.setdefault((package, test), []).append(event["Output"])
        elif action in ("pass", "fail", "skip"):
            (self.end_test if test else self.end_package)(package, test, event)

    def end_test(self, package: str, test: str, event: dict[str, object]) -> None:
        text = "".join(self.said.pop((package, test), []))
        outcome = {"pass": "passed", "fail": "failed", "skip": "skipped"}[str(event["Action"])]
        left = LEFT.search(text) if outcome == "skipped" else None
        seconds = float(str(event.get("Elapsed", 0)))
        self.tests.append(Test(f"{package}.{test}", seconds, outcome, left[1] if left else ""))
        if outcome == "failed":
            self.show(text.rstrip("\n"))

    def end_package(self, package: str, _: str, event: dict[str, object]) -> None:
        text = self.said.pop((package, ""), [])
        if event["Action"] == "skip":  # it has no tests
            return
        self.packages += 1
        cached = any("(cached)" in line for line in text)
        failed = event["Action"] == "fail"
        if failed:  # tests that did not end, by a crash or the deadline
            for key in [key for key in self.said if key[0] == package]:
                text += self.said.pop(key)
            self.show("".join(text).rstrip("\n"))
        word = "FAIL" if failed else "cached" if cached else "ok"
        left = sum(1 for test in self.tests if test.left and test.name.startswith(f"{package}."))
        elsewhere = f", {left} left to other tiers" if left else ""
        self.show(f"{float(str(event.get('Elapsed', 0))):8.1f} s  {word:6}  {package}{elsewhere}")


_printing = threading.Lock()


def show(text: str) -> None:
    with _printing:
        print(text, flush=True)


def run(words: Sequence[str], root: Path, env: dict[str, str]) -> tuple[int, list[Test]]:
    """Runs a `go test` with -json; its status, and its tests."""
    assert list(words[:2]) == ["go", "test"]
    command = ["go", "test", "-json", *words[2:]]
    outcomes = Outcomes(show=show)
    with subprocess.Popen(
        command, cwd=root, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace",
    ) as program:  # fmt: skip
        assert program.stdout is not None
        for line in program.stdout:
            outcomes.line(line)
    return program.returncode, outcomes.tests
