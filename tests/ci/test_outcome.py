"""How steps are run, also side by side, and what is printed about them."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / ".ci"))

from lanes import Lanes
from outcome import Outcome, Step, StepError, run_steps, summary


def passes() -> None:
    """It passes."""


def fails() -> None:
    raise StepError("a defect")


def test_steps_say_which_of_how_many(capsys: pytest.CaptureFixture[str]) -> None:
    run_steps([Step("one", passes), Step("two", passes)], False)
    said = capsys.readouterr().out
    assert "=== [1/2, 0m00s] one: It passes." in said
    assert "=== [2/2, 0m00s] two" in said


def test_what_cannot_work_is_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    steps = [Step("one", fails), Step("two", passes, ("one",)), Step("three", passes)]
    outcome = run_steps(steps, False)
    assert [o.result for o in outcome.values()] == ["FAILED", "not run", "passed"]
    said = capsys.readouterr().out
    assert "FAILED one: a defect" in said
    assert "not run: one did not pass" in said


SIDE_BY_SIDE = """
import sys, time, pathlib
name, folder = sys.argv[-1], pathlib.Path(sys.argv[1])
(folder / name).touch()
other = {"left": "right", "right": "left"}.get(name)
end = time.monotonic() + 60
while other and not (folder / other).exists() and time.monotonic() < end:
    time.sleep(0.01)
if other and not (folder / other).exists():
    sys.exit("alone")
if name == "lacks":
    print("skipped lacks: no such machine")
print("said by", name)
sys.exit(name == "broken")
"""


def test_neighbours_run_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each as a command; what they write is not mixed, and how they end is told of each."""
    names = ["left", "right", "lacks", "broken"]
    steps = [Step(name, fails, beside="here") for name in names]
    program = [sys.executable, "-c", SIDE_BY_SIDE, str(tmp_path)]
    outcome = run_steps([*steps, Step("last", passes)], False, program)
    assert {name: o.result for name, o in outcome.items()} == {
        "left": "passed", "right": "passed", "lacks": "skipped", "broken": "FAILED",
        "last": "passed",
    }  # fmt: skip
    assert outcome["lacks"].reason == "no such machine"
    said = capsys.readouterr().out
    headings = [re.search(rf"=== \[.*\] {name}", said) for name in names]
    spoken = [re.search(f"said by {name}", said) for name in names]
    places = [
        found.start() for both in zip(headings, spoken, strict=True) for found in both if found
    ]
    assert len(places) == 2 * len(names)
    assert places == sorted(places)
    assert re.search(r"--- \[0m\d\ds\] left begins\n", said)
    assert re.search(r"--- \[0m\d\ds\] broken FAILED, \d", said)
    assert "FAILED broken" in said


BESIDE = """
import os, sys, time, pathlib
folder, name = pathlib.Path(sys.argv[1]), sys.argv[-1]
(folder / name).write_text(str(os.nice(0)))
end = time.monotonic() + 60
all_there = lambda: {"a", "b", "patient"} <= {path.name for path in folder.iterdir()}
while not all_there() and time.monotonic() < end:
    time.sleep(0.01)
if name == "b":
    time.sleep(0.3)
print("after", *sorted(path.name for path in folder.glob("*.ended")))
(folder / f"{name}.ended").touch()
sys.exit(not all_there())
"""


def test_a_patient_step_takes_no_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It runs beside as many others as there would be without it, and gives way to them."""
    steps = [
        Step("a", fails, beside="here"),
        Step("b", fails, beside="here"),
        Step("patient", fails, beside="here", patient=True),
        Step("late", fails, ("patient", "b"), beside="here", patient=True),
    ]
    outcome = run_steps(steps, False, [sys.executable, "-c", BESIDE, str(tmp_path)])
    assert [(name, o.result) for name, o in outcome.items()] == [
        (step.name, "passed") for step in steps
    ]
    nice = {name: int((tmp_path / name).read_text()) for name in outcome}
    assert nice["a"] == nice["b"] == os.nice(0)
    assert nice["patient"] == nice["late"] > nice["a"]
    assert "after a.ended b.ended patient.ended" in capsys.readouterr().out


def test_lanes_without_other_work_take_patient_steps(tmp_path: Path) -> None:
    steps = [Step(name, fails, beside="here", patient=True) for name in ("a", "b", "patient")]
    outcome = run_steps(steps, True, [sys.executable, "-c", BESIDE, str(tmp_path)])
    assert {o.result for o in outcome.values()} == {"passed"}


def test_the_patient_lane_takes_other_steps_once_it_has_none(tmp_path: Path) -> None:
    steps = [Step(name, fails, beside="here") for name in ("a", "b", "patient")]
    outcome = run_steps(steps, True, [sys.executable, "-c", BESIDE, str(tmp_path)])
    assert {o.result for o in outcome.values()} == {"passed"}


def test_what_ends_a_lane_is_shown() -> None:
    def run(step: Step) -> None:
        raise FileNotFoundError(step.name)

    step = Step("a", fails, beside="here")
    lanes = Lanes([step], run)

    def wait() -> None:
        with lanes.running(2):
            lanes.wait_for(step)
            pytest.fail("a step that did not run has ended")

    with pytest.raises(FileNotFoundError, match="a"):
        wait()


def test_the_summary() -> None:
    outcome = {
        "one": Outcome("passed", 61.0, 100.0),
        "two": Outcome("FAILED", 1.0),
        "three": Outcome("not run"),
        "four": Outcome("skipped", 0.1, reason="no\n device"),
    }
    lines = summary(outcome, 62.5, ["     9.0 s  go-test  a.TestA"]).splitlines()
    assert lines[-1] == "steps: 1 passed, 2 failed, 1 skipped"
    assert "62.5 s  in all" in lines[-2]
    assert lines[-4:-2] == ["the slowest tests", "     9.0 s  go-test  a.TestA"]
    assert [line.split()[-1] for line in lines[2:5]] == ["one", "two", "three"]
    assert "skipped  four: no device" in lines[5]
    assert "100 s cpu" in lines[2]
