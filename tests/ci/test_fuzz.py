"""How `.ci/fuzz.py` tells a failing input from a deadline of Go's own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / ".ci"))

from fuzz import deadline_alone, fuzz_target, watched

BEGINS = "fuzz: elapsed: 6s, execs: 6009 (0/sec), new interesting: 0 (total: 372)\n"
ENDS = "FAIL\nexit status 1\nFAIL\tgithub.com/moewire/moewire/core/wire\t6.205s\n"
LATE = f"{BEGINS}--- FAIL: FuzzA (6.18s)\n    context deadline exceeded\n{ENDS}"
FOUND = f"""{BEGINS}--- FAIL: FuzzA (0.02s)
    --- FAIL: FuzzA (0.00s)
        a_test.go:12: 3, want 4

    Failing input written to testdata/fuzz/FuzzA/771e938e4458e983
    To re-run:
    go test -run=FuzzA/771e938e4458e983
{ENDS}"""
SEED = f"""{BEGINS}--- FAIL: FuzzA (0.02s)
    a_test.go:12: reading: context deadline exceeded
{ENDS}"""
HUNG = f"""{BEGINS}--- FAIL: FuzzA (6.18s)
    fuzzing process hung or terminated unexpectedly: exit status 2
    context deadline exceeded
{ENDS}"""
BROKEN = "# github.com/moewire/moewire/core/wire\nwire.go:3:1: context deadline exceeded\n"


@pytest.mark.parametrize(
    ("text", "alone"),
    [(LATE, True), (FOUND, False), (SEED, False), (HUNG, False), (BROKEN, False), ("", False)],
)
def test_only_the_deadline_itself_is_gos(text: str, alone: bool) -> None:
    assert deadline_alone(text) is alone


@pytest.mark.parametrize(
    ("answers", "budgets", "wrong"),
    [
        ([(0, "ok\n")], ["5s"], False),
        ([(1, FOUND)], ["5s"], True),
        ([(1, LATE), (0, "ok\n")], ["5s", "2000x"], False),
        ([(1, LATE), (1, FOUND)], ["5s", "2000x"], True),
        ([(1, LATE), (1, LATE)], ["5s", "2000x"], True),
    ],
)
def test_how_a_target_ends(answers: list[tuple[int, str]], budgets: list[str], wrong: bool) -> None:
    asked: list[str] = []

    def run(command: Sequence[str]) -> tuple[int, str]:
        asked.extend(word.split("=")[1] for word in command if word.startswith("-fuzztime="))
        return answers[len(asked) - 1]

    said = fuzz_target("FuzzA", "core/wire", "5", run)
    assert asked == budgets
    assert bool(said) is wrong
    assert not wrong or "-fuzz=^FuzzA$" in said


def test_a_command_is_seen_and_heard(capsys: pytest.CaptureFixture[str]) -> None:
    text = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    status, said = watched([sys.executable, "-u", "-c", text], Path.cwd())
    assert (status, said) == (3, "out\nerr\n")
    assert capsys.readouterr().out == said
    status, said = watched(["/no/such/program"], Path.cwd())
    assert status == 127
    assert "/no/such/program" in said
