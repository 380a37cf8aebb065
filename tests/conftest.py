"""The tiers of the Python tests, and how long each test took.

A test is in the tier of its mark (`check`, `all`, `long`) or in `test`. MOEWIRE_TIER selects what
`make check`, `make test`, the rest of `make test-all` and `make test-long` run; without it all run
that are not long. MOEWIRE_TEST_RECORD names a file for what ran, how long, and what was left out.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / ".ci"))
from tiers import FILES_OF_ALL, FIXTURES_OF_ALL, RUNS, SUITES_OF_ALL, TIERS  # noqa: E402

sys.path.pop(0)


def tier_of(item: pytest.Item) -> str:
    """The tier of a test; one mark beside it, on its class or module, says it."""
    marks = {mark.name for mark in item.iter_markers() if mark.name in TIERS}
    if len(marks) > 1:
        raise pytest.UsageError(f"{item.nodeid} is in two tiers: {', '.join(sorted(marks))}")
    if marks:
        return marks.pop()
    suite = item.path.relative_to(HERE).parts[0] if item.path.is_relative_to(HERE) else ""
    slow = (
        suite in SUITES_OF_ALL
        or FILES_OF_ALL in item.path.name
        or FIXTURES_OF_ALL.intersection(item.fixturenames)
    )  # type: ignore[attr-defined]
    return "all" if slow else "test"


def wanted() -> tuple[str, ...]:
    tier = os.environ.get("MOEWIRE_TIER", "")
    if tier not in RUNS:
        raise pytest.UsageError(f"MOEWIRE_TIER is {tier!r}, allowed are {', '.join(TIERS)}")
    return RUNS[tier]


class Record:
    """What ran, for .ci/record.py."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.tests: dict[str, dict[str, object]] = {}
        self.left: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = self.tests.setdefault(report.nodeid, {"seconds": 0.0, "outcome": "passed"})
        test["seconds"] = float(str(test["seconds"])) + report.duration
        if report.outcome != "passed":
            test["outcome"] = report.outcome

    def pytest_sessionfinish(self) -> None:
        text = json.dumps({"tests": self.tests, "left": self.left}, indent=1)
        Path(self.path).write_text(text)


def pytest_configure(config: pytest.Config) -> None:
    wanted()
    path = os.environ.get("MOEWIRE_TEST_RECORD", "")
    # Not for a pytest that a test starts.
    if path and os.environ.pop("MOEWIRE_TEST_RECORD", None):
        config.pluginmanager.register(Record(path), "moewire-record")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the tests of other tiers; pytest says how many."""
    chosen, left = [], []
    record = config.pluginmanager.get_plugin("moewire-record")
    for item in items:
        tier = tier_of(item)
        (chosen if tier in wanted() else left).append(item)
        if record is not None and item is (left or [None])[-1]:
            record.left[item.nodeid] = tier
    if left:
        config.hook.pytest_deselected(items=left)
        config.stash[LEFT] = count_by_tier(left)
        items[:] = chosen


@pytest.fixture(scope="session")
def wrong_library() -> str:
    """The path of a library that combines wrongly when MOEWIRE_TEST_CORRUPT is set."""
    import wrong_library

    return wrong_library.library()


LEFT = pytest.StashKey[str]()


def count_by_tier(items: list[pytest.Item]) -> str:
    tiers = [tier_of(item) for item in items]
    return ", ".join(f"{tiers.count(tier)} of {tier}" for tier in TIERS if tier in tiers)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if LEFT in config.stash:
        terminalreporter.write_line(f"left to other tiers: {config.stash[LEFT]}")
