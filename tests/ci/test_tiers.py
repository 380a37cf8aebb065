"""The tiers: each test is in one, the rest of `make test-all` has what `make test` leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / ".ci"))

import go_steps  # noqa: E402
import gotest  # noqa: E402
import outcome  # noqa: E402
import record  # noqa: E402
import steps  # noqa: E402
import tiers  # noqa: E402


def go_tests(folder: Path, **files: str) -> tuple[dict[str, tiers.GoTest], list[str]]:
    """The tests of a package, with its files given by name."""
    for name, text in files.items():
        (folder / f"{name}.go").write_text(text)
    found, wrong = tiers.go_tests(folder, [f"{name}.go" for name in files])
    return {test.name: test for test in found}, wrong


SOME = """package some

func TestPlain(t *testing.T) { play(t, 3) } // not testing.Short()

func TestLate(t *testing.T) {
	testenv.InAll(t)
}

func TestRounds(t *testing.T) { play(t, rounds()) }

func rounds() int {
	if testing.Short() {
		return 1
	}
	return 9
}

func TestHours(t *testing.T) {
	testenv.InLong(t)
}

func TestMain(m *testing.M) {}
"""


def test_go_tests_say_their_tier(tmp_path: Path) -> None:
    found, wrong = go_tests(tmp_path, some_test=SOME)
    assert wrong == []
    tier = {name: (test.tier, test.in_rest) for name, test in found.items()}
    assert tier == {
        "TestPlain": ("check", False),
        "TestLate": ("all", True),
        "TestRounds": ("check", True),  # its short form is there, the full one in the rest
        "TestHours": ("long", False),
    }


def test_a_go_test_in_two_tiers_is_found(tmp_path: Path) -> None:
    two = SOME.replace("testenv.InLong(t)", "testenv.InLong(t)\n\tlate(t)")
    two += "\nfunc late(t *testing.T) { testenv.InAll(t) }\n"
    _, wrong = go_tests(tmp_path, some_test=two)
    assert wrong == ["..TestHours is in two tiers: all, long"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("func (r *ring) play(t *testing.T) {\n\ttestenv.InAll(t)\n}\n", "play asks"),
        ("var shorter = func() bool { return testing.Short() }\n", "shorter asks"),
        ("func forgotten() bool { return testing.Short() }\n", "forgotten asks"),
    ],
)
def test_a_go_test_in_no_tier_is_found(tmp_path: Path, text: str, says: str) -> None:
    """A tier is asked for where the finder does not see which test it belongs to: the long form
    would run in no tier.
    """
    _, wrong = go_tests(tmp_path, some_test=SOME + text)
    assert len(wrong) == 1
    assert says in wrong[0]
    helper = "package some\n\nfunc Play() bool { return testing.Short() }\n"
    _, wrong = go_tests(tmp_path, helper=helper)
    assert len(wrong) == 1
    assert "Play" in wrong[0]


def test_a_table_of_tests_says_what_they_say(tmp_path: Path) -> None:
    table = (
        "\nfunc TestTable(t *testing.T) { run(table) }\n\nvar table = []test{\n\t{TestRounds},\n}\n"
    )
    found, wrong = go_tests(tmp_path, some_test=SOME + table)
    assert wrong == []
    assert found["TestTable"].in_rest


def test_the_tree_says_its_tiers() -> None:
    found = go_steps.tests_of_go()
    assert len(found) > 1000
    by_name = {f"{test.package}.{test.name}": test for test in found}
    assert by_name["core/device/cuda.TestNothingRaces"].tier == "all"
    assert by_name["tests/chaos.TestChaos"].in_rest
    assert by_name["core/ep/cpu.TestRemote"].in_rest  # by a table
    listed = subprocess.run(
        ["git", "grep", "-hE", "^func Test[A-Z0-9_]?[a-zA-Z0-9_]*\\(t ", "--", "*_test.go"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    helpers = len(listed.splitlines())
    assert len(found) >= helpers - 20  # those of internal/testenv itself are not among them


def test_every_step_is_in_one_tier() -> None:
    groups = {name: steps.GROUPS[name]() for name in ("test", "rest", "long")}
    first = {step.name for step in groups["test"]}
    rest = {step.name for step in groups["rest"]}
    assert first & rest == {"venv", "install"}
    for name, tier in (("test", "test"), ("rest", "all"), ("long", "long")):
        assert {step.tier for step in groups[name]} == {"check", tier}
    suites = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    assert suites == {name.partition("-")[2] for name in first | rest} & suites


def test_each_step_runs_in_its_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOEWIRE_TIER", "check")
    seen: list[str] = []
    made = [outcome.Step(tier, lambda: seen.append(os.environ["MOEWIRE_TIER"]), tier=tier)
            for tier in tiers.TIERS]  # fmt: skip
    outcome.run_steps(made, True)
    assert seen == list(tiers.TIERS)


# ------------------------------------------------------------- what has run --


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(record, "FOLDER", tmp_path)
    return tmp_path


def ran(name: str, left: str = "") -> record.Test:
    return record.Test(name, 1.0, "skipped" if left else "passed", left)


LATE = tiers.GoTest("core/ep/cpu", "TestLate", frozenset({"all"}))
ROUNDS = tiers.GoTest("core/ep/cpu", "TestRounds", frozenset({"short"}))


def test_all_that_was_left_has_run(kept: Path) -> None:
    record.save(
        "test", "go-test", [ran("core/ep/cpu.TestLate", "all"), ran("core/ep/cpu.TestRounds/a")]
    )
    record.save("test", "pytest-x", [ran("tests/x/test_a.py::test_b", "all")])
    record.save("all", "go-all", [ran("core/ep/cpu.TestLate"), ran("core/ep/cpu.TestRounds"),
                                  ran("core/ep/cpu.TestRounds/a")])  # fmt: skip
    record.save("all", "all-x", [ran("tests/x/test_a.py::test_b")])
    assert record.forgotten([LATE, ROUNDS]) == []


def test_what_no_step_has_run_is_found(kept: Path) -> None:
    record.save("test", "go-test", [ran("core/ep/cpu.TestLate", "all")])
    record.save("test", "pytest-x", [ran("tests/x/test_a.py::test_b", "all")])
    record.save("all", "go-all", [ran("core/ep/cpu.TestLate", "long")])
    assert record.forgotten([LATE, ROUNDS]) == [
        "core/ep/cpu.TestLate is in tier all, and no step ran it",
        "core/ep/cpu.TestRounds is in tier all, and no step ran it",
        "tests/x/test_a.py::test_b is in tier all, and no step ran it",
    ]


def test_what_ran_twice_is_found(kept: Path) -> None:
    names = ["core/ep/cpu.TestPlain", "core/ep/cpu.TestPlain/a", "tests/x/test_a.py::test_b[1/2]"]
    for tier in ("test", "all"):
        record.save(tier, "some", [ran(name) for name in names])
    assert record.forgotten([]) == [f"{name} was run twice" for name in names]


def test_a_run_forgets_earlier_ones(kept: Path) -> None:
    record.save("test", "go-test", [ran("a.TestA")])
    record.save("all", "go-all", [ran("a.TestB")])
    record.begin("all")
    assert (len(record.load("test")), len(record.load("all"))) == (1, 0)
    record.begin("test")
    assert record.load("test") == []


def test_the_slowest_are_shown(kept: Path) -> None:
    tests = [record.Test(f"a.Test{i}", float(i), "passed") for i in range(30)]
    record.save("test", "go-test", [*tests, record.Test("a.Test29/part", 28.5, "passed")])
    record.save("test", "pytest-x", [record.Test("tests/x/test_a.py::test_b[1/2]", 28.7, "passed")])
    slowest = record.slowest(["test"])
    assert len(slowest) == 10
    assert [line.split()[-1] for line in slowest[:3]] == [
        "a.Test29", "tests/x/test_a.py::test_b[1/2]", "a.Test28",
    ]  # fmt: skip


# ------------------------------------------------------- Go's and pytest's own --


def outcomes_of(*events: str) -> tuple[gotest.Outcomes, str]:
    said: list[str] = []
    one = gotest.Outcomes(show=said.append)
    for event in events:
        one.line(event)
    return one, "\n".join(said)


def test_what_go_test_says_is_kept() -> None:
    of = '"Package":"github.com/moewire/moewire/core/ep/cpu","Test":"TestLate"'
    left = "runs in make test-all (MOEWIRE_TIER=all)"
    one, said = outcomes_of(
        '{"Action":"build-output","ImportPath":"x","Output":"x.go:1: no\\n"}',
        f'{{"Action":"output",{of},"Output":"a_test.go:9: {left}"}}',
        f'{{"Action":"skip",{of},"Elapsed":0.5}}',
        f'{{"Action":"output",{of.replace("Late", "Bad")},"Output":"it hangs\\n"}}',
        f'{{"Action":"fail",{of.replace("Late", "Bad")},"Elapsed":2}}',
        f'{{"Action":"output",{of.replace("Late", "Cut")},"Output":"panic: late\\n"}}',
        f'{{"Action":"fail",{of.partition(",")[0]},"Elapsed":3}}',
        "go: a warning",
    )
    assert [(t.name, t.seconds, t.outcome, t.left) for t in one.tests] == [
        ("core/ep/cpu.TestLate", 0.5, "skipped", "all"), ("core/ep/cpu.TestBad", 2.0, "failed", ""),
    ]  # fmt: skip
    for text in ("x.go:1: no", "it hangs", "panic: late", "FAIL    core/ep/cpu", "go: a warning"):
        assert text in said
    assert "1 left to other tiers" in said


CASES = """
from pytest import mark

@mark.check
def test_quick(): pass
def test_usual(): pass
@mark.all
def test_late(): pass
@mark.long
def test_hours(): pass
"""


def run_pytest(folder: Path, text: str, tier: str | None) -> tuple[int, str, list[record.Test]]:
    """Runs cases under the conftest of tests/, in a tier."""
    (folder / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (folder / "some").mkdir(exist_ok=True)
    (folder / "some" / "test_some.py").write_text(text)
    (folder / ".ci").mkdir(exist_ok=True)
    kept = folder / "record.json"
    env = {k: v for k, v in os.environ.items() if k != "MOEWIRE_TIER"}
    env |= {"MOEWIRE_TEST_RECORD": str(kept), "PYTHONPATH": str(ROOT / ".ci")}
    env |= {"MOEWIRE_TIER": tier} if tier is not None else {}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", ROOT / "pyproject.toml", "--rootdir", folder,
         "-p", "no:cacheprovider", folder],
        cwd=folder, env=env, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr, record.from_pytest(kept)


@pytest.mark.parametrize(
    ("tier", "runs"),
    [
        ("check", ["quick"]),
        ("test", ["quick", "usual"]),
        ("all", ["late"]),
        ("long", ["hours"]),
        (None, ["late", "quick", "usual"]),
    ],
)
def test_pytest_runs_a_tier(tmp_path: Path, tier: str | None, runs: list[str]) -> None:
    status, text, kept = run_pytest(tmp_path, CASES, tier)
    assert status == 0, text
    assert sorted(t.name.split("test_")[-1] for t in kept if not t.left) == runs
    assert f"{len(runs)} passed, {4 - len(runs)} deselected" in text
    assert "left to other tiers: 1 of " in text
    assert len([t for t in kept if t.left]) == 4 - len(runs)


def test_a_pytest_case_in_two_tiers_is_found(tmp_path: Path) -> None:
    status, text, _ = run_pytest(tmp_path, CASES + "pytestmark = mark.all\n", "test")
    assert status != 0
    assert "test_quick is in two tiers: all, check" in text


def test_another_tier_is_refused(tmp_path: Path) -> None:
    status, text, _ = run_pytest(tmp_path, CASES, "quick")
    assert status != 0
    assert "MOEWIRE_TIER is 'quick', allowed are check, test, all, long" in text
