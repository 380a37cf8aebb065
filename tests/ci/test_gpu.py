"""How `.ci/gpu.py` tells outcomes, keeps to its time, and writes what came out."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / ".ci"))

import gpu
import gpu_build
import gpu_report
import gpu_run
from gpu_run import Row, Run, Suite, counts, parsed

GO = """=== RUN   TestA
--- PASS: TestA (0.00s)
    --- PASS: TestA/one (0.00s)
    --- SKIP: TestA/two (0.00s)
--- FAIL: TestB (0.00s)
"""
PYTEST = """test_cuda.py::test_a PASSED   [ 50%]
FAILED test_cuda.py::test_b - AssertionError: 7 failed
=== 1 failed, 12 passed, 3 skipped in 1.23s ===
"""
# A bench's, as gpubench prints it.
TIMED = {
    "what": "moewire", "ranks": 8, "tokens_per_rank": 1024, "hidden": 7168, "topk": 8,
    "experts": 256, "fp8": False, "slots": 1, "copy_gb_per_s": 3000.0, "dispatch_us": 1.25,
    "dispatch_of_floor": 0.9, "combine_us": 2.5, "combine_of_floor": 0.8, "code": "cubin",
    "rank_0_parts_us": {"send": 1.0, "receive": 2.0, "publish": 3.0, "reduce": 4.0},
    "host_us_per_launch": 1.5, "go_allocations_per_op": 0.0,
}  # fmt: skip


def python(text: str, seconds: float = 60, **fields: object) -> Suite:
    words = [sys.executable, "-c", text]
    return Suite("one", words, seconds, cwd=Path.cwd(), **fields)  # type: ignore[arg-type]


def run_of(tmp_path: Path, budget_seconds: float = 120) -> Run:
    return Run(budget_seconds, dict(os.environ), tmp_path / "log")


def test_counts_of_both_kinds_of_tests() -> None:
    assert counts(GO) == {"passed": 2, "failed": 1, "skipped": 1}
    assert counts(PYTEST) == {"passed": 12, "failed": 1, "skipped": 3}
    assert counts("nothing") == {"passed": 0, "failed": 0, "skipped": 0}


def test_the_last_line_is_the_result() -> None:
    assert parsed('a warning\n{"a": 1}\n') == ("passed", {"a": 1})
    for text in ("", "no object", "[1]", '{"a": 1}\nmore'):
        assert parsed(text) == ("failed", {})


@pytest.mark.parametrize(
    ("text", "tests", "outcome"),
    [
        ("print('--- PASS: TestA (0s)')", True, "passed"),
        ("print('--- SKIP: TestA (0s)')", True, "failed"),
        ("print('--- PASS: TestA (0s)'); raise SystemExit(1)", True, "failed"),
        ("raise SystemExit(3)", False, "does not fit"),
        ("print('{}')", False, "passed"),
        ("print('nothing')", False, "failed"),
    ],
)
def test_outcomes(tmp_path: Path, text: str, tests: bool, outcome: str) -> None:
    row = run_of(tmp_path).row(python(text, tests=tests))
    assert row.outcome == outcome
    assert (tmp_path / "log").read_text().startswith("===== one: ")


def test_what_is_not_there_is_not_run(tmp_path: Path) -> None:
    row = run_of(tmp_path).row(python("raise SystemExit(1)", lacks="no such tool"))
    assert (row.outcome, row.said) == ("not there", "no such tool")
    row = run_of(tmp_path).row(Suite("two", ["/there/is/no/program"], 60))
    assert row.outcome == "failed" and "no/program" in row.said


def test_what_hangs_tells_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Itself and what it has started, which holds its output."""
    monkeypatch.setattr(gpu_run, "GRACE_SECONDS", 60)
    text = (
        "import subprocess, sys, time\n"
        "def stuck_here():\n"
        "    open(sys.argv[1], 'w').close()\n"
        "    time.sleep(3600)\n"
        "def child_there():\n"
        "    open(sys.argv[1] + sys.argv[2], 'w').close()\n"
        "    time.sleep(3600)\n"
        "if len(sys.argv) > 2:\n"
        "    child_there()\n"
        "subprocess.Popen([sys.executable, __file__, sys.argv[1], 'child'])\n"
        "stuck_here()\n"
    )
    program, ready = tmp_path / "program.py", tmp_path / "ready"
    program.write_text(text)
    words = [sys.executable, str(program), str(ready)]
    with gpu_run.started(words, dict(os.environ), tmp_path) as child:
        while not (ready.exists() and (tmp_path / "readychild").exists()):
            assert child.poll() is None
            time.sleep(0.01)
        said = gpu_run.stopped(child)
    assert "stuck_here" in said and "child_there" in said


def test_what_cannot_be_ended_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it wrote is not lost, and the caller does not wait for its end."""
    monkeypatch.setattr(gpu_run, "GRACE_SECONDS", 0.1)
    children: list[subprocess.Popen[str]] = []
    monkeypatch.setattr(gpu_run, "_signal", lambda child, number: children.append(child))
    text = "import sys; print('stuck here', flush=True); open(sys.argv[1], 'w')"
    text += "; import time; time.sleep(3600)"
    ready = tmp_path / "ready"
    child = gpu_run.started([sys.executable, "-c", text, str(ready)], dict(os.environ), tmp_path)
    try:
        while not ready.exists():
            assert child.poll() is None
            time.sleep(0.01)
        said = gpu_run.stopped(child)
        assert "stuck here" in said and "cannot be ended" in said
        monkeypatch.setattr(gpu_run, "started", lambda *given: child)
        status, said = gpu_run.command([], {}, tmp_path, 0.1)
        assert status is None and "stuck here" in said
        assert child.poll() is None
    finally:
        child.kill()
        child.communicate()


def test_what_hangs_takes_its_share_alone(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    row = run.row(python("import time; time.sleep(3600)", seconds=1))
    assert row.outcome == "out of time"
    assert run.row(python("print('--- PASS: TestA (0s)')")).outcome == "passed"


def test_no_time_is_left(tmp_path: Path) -> None:
    row = run_of(tmp_path, budget_seconds=0).row(python("print('--- PASS: TestA (0s)')"))
    assert (row.outcome, row.said) == ("out of time", "no time was left for it")
    assert row.outcome not in gpu_run.FINE


def test_shares_are_within_the_budget(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu_build, "PLACE", tmp_path)
    for suites in (gpu.tests(), gpu.benches(emulated=False)):
        assert sum(suite.seconds for suite in suites) <= gpu.BUDGET
        assert len({suite.name for suite in suites}) == len(suites)
    assert gpu.BUDGET < 600


def test_suites_of_python_have_tests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each file is there, and what a suite chooses by -k is the name of some test in it."""
    monkeypatch.setattr(gpu_build, "PLACE", tmp_path)
    suites = [*gpu.tests(), *gpu.emulated_tests()]
    named = [suite for suite in suites if suite.name.startswith("Python")]
    assert {"Python, ranks of other hosts", "Python, jobs of the CPU"} <= {s.name for s in named}
    for suite in named:
        files = [Path(word) for word in suite.words if word.endswith(".py")]
        assert files and all(file.is_file() for file in files), suite.words
    names = " ".join(file.read_text() for file in files_of(gpu.HOSTS_TESTS))
    for word in gpu.HOSTS_CASES.split(" or "):
        assert f"_{word}_" in names, word
    for file in files_of(gpu.CARRIED_TESTS):
        assert "ranks: Ranks" in file.read_text(), file


def files_of(names: list[str]) -> list[Path]:
    return [gpu_build.ROOT / "tests" / "python" / name for name in names]


def test_tables() -> None:
    """Ours before the baseline, large before small; parts and calls have tables of their own."""
    small, slow = {**TIMED, "tokens_per_rank": 128}, {**TIMED, "what": "four copies"}
    slow |= {"rank_0_parts_us": None, "dispatch_us": 4.0}
    calls = {"what": "Python", "on": "a device", "calls_us": {"dispatch": 7.5}}
    rows = [Row(str(n), "passed", result=r) for n, r in enumerate([small, slow, TIMED, calls])]
    rows.append(Row("racecheck", "not there", said="no compute-sanitizer"))
    text = gpu_report.table("title", {"device": "some"}, rows)
    ours = text.index("| moewire | 8 | 1024 |")
    assert ours < text.index("| four copies | 8 | 1024 |") < text.index("| moewire | 8 | 128 |")
    assert "| 1024 | bf16 | 1.0 | 2.0 | 3.0 | 4.0 | 1.50 |" in text
    assert "| 1024 | bf16 | dispatch | 3.20 | 3.78 | reached | 0.90 | reached | 2700 | no |" in text
    assert "| 1024 | bf16 | combine | 1.00 | 2.78 | missed | 0.80 | reached | 2400 | no |" in text
    assert "| 128 | bf16 | dispatch | not measured | 3.78 | not measured | 0.90 |" in text
    assert "| Python | a device | dispatch | 7.5 |" in text
    assert "racecheck: no compute-sanitizer" in text


def test_table_of_probes() -> None:
    """What a device answers has no times, and stands in no other table."""
    found = {
        "what": "probes", "code": "cubin", "values": 100, "old_values": 3,
        "unordered_values": 50, "old_unordered_values": 20, "late": 0, "lanes": 32, "lanes_on": 31,
        "clock_step_ns_min": 32, "clock_step_ns_max": 1024, "clock_steps": 9, "clock_back": 0,
    }  # fmt: skip
    rows = [Row("probes", "passed", result=found), Row("a", "passed", result=TIMED)]
    text = gpu_report.table("title", {}, rows)
    assert "| 3 of 100 | 20 of 50 | 0 | 31 of 32 | 32 to 1024 |" in text
    assert text.count("cubin") == 1


def test_table_of_variants() -> None:
    """Those that were forced stand beside what the shape chose, and in no other table."""
    small = {**TIMED, "tokens_per_rank": 128}
    forced = {**small, "loads": 3, "dispatch_us": 7.25}
    rows = [Row(str(n), "passed", result=r) for n, r in enumerate([forced, small, TIMED])]
    text = gpu_report.table("title", {}, rows)
    head = text.index("| R | T | H | K | rows | loads under way |")
    found = [line.split(" | ")[1:2] + line.split(" | ")[5:7] for line in text[head:].splitlines()]
    assert found[2:] == [["128", "by shape", f"{small['dispatch_us']:.1f}"], ["128", "deep", "7.2"]]
    assert "7.2" not in text[:head]


@pytest.mark.parametrize(("required", "status"), [("", 0), ("tcp", 0), ("cuda", 1), ("all", 1)])
def test_suites_that_lack_something(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    required: str,
    status: int,
) -> None:
    monkeypatch.setenv("MOEWIRE_REQUIRE", required)
    words = [sys.executable, "-c", "print('--- PASS: TestOne')"]
    suites = [gpu_run.Suite("one", words, 20), gpu_run.Suite("two", words, 20, lacks="no tool")]
    monkeypatch.setattr(gpu, "tests", lambda: suites)
    monkeypatch.setattr(gpu, "benches", lambda emulated: suites[1:])
    monkeypatch.setattr(gpu_build, "PLACE", tmp_path)
    monkeypatch.setattr(gpu, "conditions", lambda emulated: {})
    assert gpu.run("test", False, tmp_path / "results" / "of today") == status  # made there
    assert "1 of 2 suites did not run: two" in capsys.readouterr().out
    assert gpu.run("bench", False, tmp_path) == 0  # a peer that is not there
    assert gpu.run("test", False, tmp_path, only="^one$") == 0
    assert gpu.run("test", False, tmp_path, only="three") == 2


def test_where_compute_sanitizer_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What MOEWIRE_SANITIZER says goes before PATH, that before the package beside torch."""

    def program(*parts: str) -> str:
        path = tmp_path.joinpath(*parts, "compute-sanitizer")
        path.parent.mkdir(parents=True)
        path.write_text("")
        path.chmod(0o755)
        return str(path)

    site = ("venv", "lib", "python3.11", "site-packages", "nvidia", "cu13", "compute-sanitizer")
    packaged, on_path, said = program(*site), program("bin"), program("carried")
    monkeypatch.setattr(gpu_build, "python", lambda: str(tmp_path / "venv" / "bin" / "python"))
    monkeypatch.setenv("PATH", str(Path(on_path).parent))
    monkeypatch.setenv("MOEWIRE_SANITIZER", said)
    assert gpu.sanitizer() == said
    monkeypatch.setenv("MOEWIRE_SANITIZER", "/nowhere")
    assert gpu.sanitizer() == on_path
    monkeypatch.setenv("PATH", "/nowhere")
    if not Path("/usr/local/cuda/bin/compute-sanitizer").is_file():
        assert gpu.sanitizer() == packaged
        Path(packaged).unlink()
        assert gpu.sanitizer() == ""
        assert "MOEWIRE_SANITIZER" in gpu.sanitizer_suite("memcheck", 9).lacks


def test_what_is_too_large_to_carry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "program").write_bytes(b"x" * 1000)
    monkeypatch.setattr(gpu_build, "PLACE", tmp_path)
    monkeypatch.setattr(gpu_build, "_tracked", lambda: [1 << 20])
    assert "--built" in gpu_build.report()
    monkeypatch.setattr(gpu_build, "LIMIT_BYTES", 1 << 20)
    with pytest.raises(gpu_build.CannotBuildError, match="too much"):
        gpu_build.report()


def test_nothing_was_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu_build, "GROUP_TESTS", tmp_path / "group.test")
    with pytest.raises(gpu_build.CannotBuildError, match=r"group\.test"):
        gpu_build.find()


def test_without_a_device(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "no_device", lambda: "none")
    monkeypatch.setattr(sys, "argv", ["gpu.py", "test"])
    for required, status in (("", 0), ("tcp", 0), ("cuda", 1), ("tcp,all", 1)):
        monkeypatch.setenv("MOEWIRE_REQUIRE", required)
        assert gpu.main() == status
        assert "no CUDA device here: none" in capsys.readouterr().out
