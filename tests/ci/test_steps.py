"""What .ci/steps.py takes for fuzz targets, and how it tells of steps that were skipped."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / ".ci"))

import go_steps  # noqa: E402
import outcome  # noqa: E402
import python_steps  # noqa: E402
import record  # noqa: E402
import steps  # noqa: E402


def test_every_fuzz_target_is_found() -> None:
    listed = subprocess.run(
        ["git", "grep", "-hc", "^func Fuzz", "--", "*_test.go"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    found = go_steps.fuzz_targets()
    assert len(found) >= sum(map(int, listed.split()))
    assert ("core/transport/shmem", "FuzzPeer") in found
    assert ("core/transport/shmem", "FuzzMessage") in found
    assert "core/group/cudaipc" in {package for package, _ in found}


def test_targets_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    spent: list[int] = []

    def note(target: str, package: str, seconds: str, *_: object) -> str:
        spent.append(int(seconds))
        return ""

    monkeypatch.delenv("MOEWIRE_FUZZ_SECONDS", raising=False)
    monkeypatch.setattr(go_steps, "fuzz_target", note)
    go_steps.fuzz()
    assert len(spent) == len(go_steps.fuzz_targets())
    assert min(spent) >= 1
    assert sum(spent) <= max(go_steps.FUZZ_TOTAL_SECONDS, len(spent))


FUZZED = ("MOEWIRE_FUZZ_SECONDS", "MOEWIRE_FUZZ_EXAMPLES")


@pytest.fixture
def long_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, dict[str, str]]:
    """Takes every step of `make test-long` without its tests: what each was given."""
    given: dict[str, dict[str, str]] = {}
    of_go: list[str] = []

    def go(step: str, *words: str, env: dict[str, str]) -> None:
        given[step] = env

    def python(*words: object, env: dict[str, str]) -> None:
        step = Path(env["MOEWIRE_TEST_RECORD"]).name.removeprefix(".")
        given[step] = {"words": " ".join(map(str, words)), **env}

    def fuzz(target: str, package: str, seconds: str, *_: object) -> str:
        of_go.append(seconds)
        return ""

    monkeypatch.setattr(record, "FOLDER", tmp_path)
    monkeypatch.setattr(go_steps, "go", go)
    monkeypatch.setattr(go_steps, "fuzz_target", fuzz)
    monkeypatch.setattr(go_steps, "prepare_machine", lambda: None)
    monkeypatch.setattr(go_steps, "run", lambda *_, **__: None)
    monkeypatch.setattr(python_steps, "run", python)
    monkeypatch.setenv("MOEWIRE_TIER", "")
    for name in FUZZED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MOEWIRE_FUZZ_EXAMPLES", "77")
    made = [step for step in steps.long_steps() if step.name not in ("venv", "install")]
    assert {one.result for one in outcome.run_steps(made, True).values()} == {"passed"}
    assert set(of_go) == {"120"}
    return given


def test_the_long_run_fuzzes_in_every_language(long_run: dict[str, dict[str, str]]) -> None:
    """What it gives to Go, and what the environment says instead, reach C and Python, too."""
    fuzzing = {name: of for name, of in long_run.items() if "-m fuzz" in of.get("words", "")}
    assert set(fuzzing) == {"fuzz-long-capi", "fuzz-long-python"}
    for of in [*fuzzing.values(), long_run["go-long"], long_run["long-python"]]:
        assert [of[name] for name in FUZZED] == ["120", "77"]
        assert of["MOEWIRE_SOAK_PAIRS"] == "100000"
    assert {of["MOEWIRE_TIER"] for of in fuzzing.values()} == {""}  # their tests are not of long


def test_every_test_that_fuzzes_has_the_mark() -> None:
    texts = {path: path.read_text() for path in (ROOT / "tests").glob("*/test_*.py")}
    reads = {
        path for path, text in texts.items() if re.search(r"environ\.get\(.MOEWIRE_FUZZ_", text)
    }
    marked = {path for path, text in texts.items() if re.search(r"pytest\.mark\.fuzz", text)}
    assert reads == marked
    assert len(reads) >= 3


def without_machine(monkeypatch: pytest.MonkeyPatch, require: str) -> None:
    """Makes the virtual machine one that cannot be had."""
    failed = subprocess.CompletedProcess([], go_steps.MACHINE_FAILED, "", "no qemu\n")
    monkeypatch.setattr(go_steps.subprocess, "run", lambda *_, **__: failed)
    monkeypatch.setenv("MOEWIRE_REQUIRE", require)
    monkeypatch.setattr(sys, "argv", ["steps.py", "rdma"])
    monkeypatch.setattr(steps, "prepare_environment", lambda: None)
    monkeypatch.setattr(steps, "select", lambda _: [steps.Step("rdma", go_steps.rdma)])


def test_a_skipped_step_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_machine(monkeypatch, "")
    assert steps.main() == 0
    summary = capsys.readouterr().out.split("=== summary")[1]
    assert "skipped  rdma: no virtual machine: no qemu" in summary
    assert "steps: 0 passed, 0 failed, 1 skipped" in summary


@pytest.mark.parametrize("require", ["verbs", "all"])
def test_what_is_required_is_not_skipped(monkeypatch: pytest.MonkeyPatch, require: str) -> None:
    without_machine(monkeypatch, require)
    assert steps.main() == 1


def test_a_step_waits_for_what_it_needs_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`late` needs `slow`, and `never` needs `wrong`; all are of one group."""
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, time, pathlib\n"
        f"done = pathlib.Path({str(tmp_path)!r})\n"
        "name = sys.argv[-1]\n"
        "time.sleep(0.5 if name == 'slow' else 0)\n"
        "print(name, 'behind', *sorted(p.name for p in done.glob('*.done')))\n"
        "(done / f'{name}.done').touch()\n"
        "sys.exit(name == 'wrong')\n"
    )
    needs = {"slow": (), "wrong": (), "late": ("slow",), "never": ("wrong",)}
    group = [outcome.Step(name, lambda: None, of, beside="g") for name, of in needs.items()]
    runner = outcome.Runner(group, quiet=True, program=[sys.executable, str(program)])
    found = {name: one.result for name, one in runner.run().items()}
    assert found == {"slow": "passed", "wrong": "FAILED", "late": "passed", "never": "not run"}
    assert runner.outcome["never"].reason == "wrong did not pass"
    assert "late behind slow.done" in capsys.readouterr().out


def test_every_go_test_is_run_once_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the race detector or without, and without it what does less there."""
    calls: list[tuple[bool, set[str], re.Pattern[str], re.Pattern[str]]] = []

    def go(step: str, *words: str, env: dict[str, str]) -> None:
        flags = dict(re.findall(r"(?m)^-(run|skip)=(.*)$", "\n".join(words)))
        packages = {word.removeprefix("./") for word in words if word.startswith("./")}
        run, skip = re.compile(flags.get("run", "")), re.compile(flags.get("skip", "$^"))
        calls.append(("-race" in words, packages, run, skip))

    monkeypatch.setattr(go_steps, "go", go)
    go_steps.go_test()
    go_steps.go_compute()
    go_steps.go_race()
    for test in go_steps.tests_of_go():
        ways = {
            race
            for race, packages, run, skip in calls
            if test.package in packages and run.search(test.name) and not skip.search(test.name)
        }
        assert False in ways or (True in ways and "race" not in test.marks), test
