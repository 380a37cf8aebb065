"""What every benchmark of ``tests/bench`` says, and where it writes."""

from __future__ import annotations

import argparse
import json
import signal
from pathlib import Path

import pytest

from documents import result


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    result.add_options(parser)
    return parser.parse_args(arguments)


def test_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numbers, text = tmp_path / "numbers.json", tmp_path / "tables.md"
    given = options("--json", str(numbers), "--markdown", str(text))
    result.show(given, "half done")
    result.write(given, {"rows": [1, 2]}, "| a |\n")
    assert capsys.readouterr().out == "half done\n"
    assert json.loads(numbers.read_text()) == {"rows": [1, 2]} and text.read_text() == "| a |\n"


def test_standard_output_is_json_alone(capsys: pytest.CaptureFixture[str]) -> None:
    given = options("--json", "-")
    result.show(given, "half done")
    result.write(given, {"rows": []}, "| a |\n")
    assert json.loads(capsys.readouterr().out) == {"rows": []}


def test_nothing_is_written_unasked(capsys: pytest.CaptureFixture[str]) -> None:
    result.write(options(), {"rows": []}, "| a |\n")
    assert capsys.readouterr().out == ""


def test_sigterm_lets_what_is_open_end() -> None:
    before, closed = signal.getsignal(signal.SIGTERM), []

    def run() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            closed.append("servers")

    try:
        result.end_at_sigterm()
        with pytest.raises(SystemExit) as end:
            run()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert end.value.code == 128 + signal.SIGTERM and closed
