"""A plugin of pytest for suites that may be ended in the middle: failures are told at once."""

from __future__ import annotations

import sys

import pytest


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Writes what went wrong where it happens: pytest itself does at the end of the session."""
    if report.failed:
        line = f"\nFAILED {report.nodeid} ({report.when}, {report.duration:.1f} s)"
        print(line, report.longreprtext, sep="\n", file=sys.__stdout__, flush=True)
