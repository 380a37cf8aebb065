"""What .ci/steps.py takes for fuzz targets, and how it tells of steps that were skipped."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / ".ci"))

import go_steps  # noqa: E402
import outcome  # noqa: E402
import steps  # noqa: E402


def test_every_fuzz_target_is_found() -> None:
    listed = subprocess.run(
        ["git", "grep", "-hc", "^func Fuzz", "--", "*_test.go"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    found = go_steps.fuzz_targets()
    assert len(found) >= sum(map(int, listed.split()))
    assert ("core/transport/mapped", "FuzzPeer") in found
    assert ("core/transport/mapped", "FuzzMessage") in found
    assert "core/transport/cudaipc" in {package for package, _ in found}


def test_targets_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    spent: list[int] = []

    def note(target: str, package: str, seconds: str, runner: object) -> str:
        spent.append(int(seconds))
        return ""

    monkeypatch.delenv("MOEWIRE_FUZZ_SECONDS", raising=False)
    monkeypatch.setattr(go_steps, "fuzz_target", note)
    go_steps.fuzz()
    assert len(spent) == len(go_steps.fuzz_targets())
    assert min(spent) >= 1
    assert sum(spent) <= max(go_steps.FUZZ_TOTAL_SECONDS, len(spent))


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
    told = capsys.readouterr().out.split("=== summary")[1]
    assert "skipped  rdma: no virtual machine: no qemu" in told
    assert "steps: 0 passed, 0 failed, 1 skipped" in told


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
