"""The steps of `make test` and its parts: runs them, times them, sums up.

    python3 .ci/steps.py all              every step
    python3 .ci/steps.py lint             the fast checks
    python3 .ci/steps.py venv go-test     the steps named

Every step runs even if an earlier one failed, except where it could not work
without it. The exit status is 0 only if each one that was asked for ran and
passed, or was skipped for want of what the machine lacks: the summary says
which and why, and MOEWIRE_REQUIRE makes that a failure.

The Go fuzz targets share a hundred seconds. MOEWIRE_FUZZ_SECONDS makes each Go
target and each seed of tests/capi/fuzz.c run that long, MOEWIRE_FUZZ_EXAMPLES
sets the number of examples of each test in tests/python/test_fuzz.py.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import lock
from fuzz import fuzz_target, watched
from outcome import Step, StepError, StepSkipped, run_steps, summary

ROOT = Path(__file__).resolve().parent.parent
VENV = Path(os.environ.get("MOEWIRE_VENV") or ".venv")
VENV = VENV if VENV.is_absolute() else ROOT / VENV
BIN = VENV / "bin"
REQUIREMENTS = ROOT / "tests" / "requirements.txt"
DIST = ROOT / "wheels" / "dist"

# What the test suites of tests/ need, in the order in which they run. Those
# not named here run last.
SUITE_ORDER = ["capi", "python", "multihost", "examples", "multirank", "wheel"]


# What tests/rdma/machine.py ends with when there can be no machine.
MACHINE_FAILED = 125


def run(*command: str | Path, env: dict[str, str] | None = None) -> None:
    """Runs a command in the repository's root, its output going to ours."""
    words = [str(word) for word in command]
    shown = [f"{k}={v}" for k, v in (env or {}).items()]
    print("+", *shown, *(w.removeprefix(f"{ROOT}/") for w in words), flush=True)
    try:
        status = subprocess.run(
            words, cwd=ROOT, env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL
        ).returncode
    except OSError as err:
        raise StepError(f"cannot start: {err}") from err
    if status != 0:
        raise StepError(f"exit status {status}: {' '.join(words)}")


def sources(*patterns: str) -> list[str]:
    """The tree's own files: tracked, or new and not ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z", "--", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


# ------------------------------------------------------------------ steps --


def venv() -> None:
    """A virtual environment with exactly what tests/requirements.txt lists."""
    if sys.version_info < (3, 11) and not BIN.exists():
        raise StepError("the tests need Python 3.11 or newer (torch 2.15 does): make PYTHON=...")
    stamp = VENV / "moewire-requirements.sha256"
    digest = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    if stamp.is_file() and stamp.read_text() == digest:
        print(f"{VENV} is up to date")
        return
    if not (BIN / "python").exists():
        run(sys.executable, "-m", "venv", VENV)
    lock.install(run, BIN, REQUIREMENTS)
    stamp.write_text(digest)


def install() -> None:
    """Builds the library and installs the package, editable."""
    # What the lock names is here already, so the build needs no isolation.
    run(BIN / "python", "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation",
        "--disable-pip-version-check", "-e", ".")  # fmt: skip


def gofmt() -> None:
    """Every Go file is formatted."""
    files = [name for name in sources("*.go") if "/testdata/" not in name]
    found = subprocess.run(["gofmt", "-l", *files], cwd=ROOT, capture_output=True, text=True)
    if found.returncode != 0 or found.stdout:
        raise StepError(f"run `make format`; not formatted:\n{found.stdout}{found.stderr}")


def vet() -> None:
    """go vet."""
    run("go", "vet", "./...")


def staticcheck() -> None:
    """staticcheck, from its own module so that it does not raise our versions."""
    run("go", "tool", "-modfile=.ci/tools/go.mod", "staticcheck", "./...")


def ruff() -> None:
    """Python: lints and formatting."""
    run(BIN / "ruff", "check", ".")
    run(BIN / "ruff", "format", "--check", ".")


def mypy() -> None:
    """Python: types of the package and of the build."""
    run(BIN / "mypy", "--strict")


# Go ends a package's tests after ten minutes by itself: too soon on a slow
# machine. Tests have bounds of their own; this one is for what is missed there.
GO_TEST = ["go", "test", "-timeout=40m"]

# Whose tests mostly run NVIDIA's compiler, minutes of it: what comes out is the
# same whatever Go's own part was built with, so they run once, in go-test.
COMPILED_KERNELS = ["core/device/cuda/kernels", "core/device/cuda/images"]

# What is another program without cgo: the CPU's kernels, and how native code is called.
WITHOUT_CGO = {"github.com/moewire/moewire/core/device/cpu", "github.com/ebitengine/purego"}


def core_packages(*without: str) -> dict[str, set[str]]:
    """The packages of the core that have tests, but for some; what they and their tests use."""
    command = ["go", "list", "-test", "-f", '{{.ImportPath}} {{join .Deps " "}}', "./core/..."]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        raise StepError(f"go list: {listed.stderr}")
    uses = {}
    for line in listed.stdout.splitlines():
        words = line.split()
        name = words[0].removesuffix(".test")
        if name != words[0] and not name.endswith(without):
            uses[name] = set(words[1:])
    return uses


def go_test() -> None:
    """Every Go test, cgo on."""
    run(*GO_TEST, "./...", env={"CGO_ENABLED": "1"})


def go_race() -> None:
    """The core under the race detector. Random tests have fewer rounds."""
    # The cache of code compiled at run time has goroutines and processes in it.
    kernels, _images = COMPILED_KERNELS
    run(*GO_TEST, "-race", "-short", *core_packages(kernels), env={"CGO_ENABLED": "1"})


def go_pure() -> None:
    """What differs without cgo, and the plain Go kernels. Random tests have fewer rounds."""
    differ = [name for name, uses in core_packages(*COMPILED_KERNELS).items() if uses & WITHOUT_CGO]
    run("go", "build", "./core/...", env={"CGO_ENABLED": "0"})
    run(*GO_TEST, "-short", *differ, env={"CGO_ENABLED": "0"})


def go_bench() -> None:
    """Every benchmark once, so that they stay alive."""
    run("go", "test", "-run=^$", "-bench=.", "-benchtime=1x", "./...")


# What the fuzzing of all Go targets may take, without the builds.
FUZZ_TOTAL_SECONDS = 100


def fuzz_targets() -> list[tuple[str, str]]:
    """Every Go fuzz target of the tree and its package: a list would forget some.

    Those of C and Python are in their suites.
    """
    found = []
    for name in sorted(sources("*_test.go")):
        text = (ROOT / name).read_text()
        package = str(Path(name).parent)
        found += [(package, t) for t in re.findall(r"^func (Fuzz\w+)\(", text, re.MULTILINE)]
    return found


def fuzz() -> None:
    """Every Go fuzz target for a few seconds (MOEWIRE_FUZZ_SECONDS: longer)."""
    targets = fuzz_targets()
    share = max(1, FUZZ_TOTAL_SECONDS // max(1, len(targets)))
    seconds = os.environ.get("MOEWIRE_FUZZ_SECONDS", str(share))
    for package, target in targets:
        wrong = fuzz_target(target, package, seconds, lambda words: watched(words, ROOT))
        if wrong:
            raise StepError(wrong)


# What the race detector watches in the virtual machine: it makes all slower.
RDMA_RACES = "Concurrent|RetireUnderLoad|Mixture|Wake|WaitSees|ES2No"

# Dispatch and combine between processes, the death of one, and bad networks.
RDMA_EP = "TestProcesses|TestProcessKilled/rdma|TestWeather"


def rdma() -> None:
    """The verbs carrier, and fabrics and EP over it, on soft-RoCE devices in a virtual machine."""
    machine = ROOT / "tests" / "rdma" / "machine.py"
    prepared = subprocess.run(
        [sys.executable, machine, "prepare"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    reason = prepared.stderr.strip()
    if prepared.returncode == MACHINE_FAILED:
        required = os.environ.get("MOEWIRE_REQUIRE", "").split(",")
        if "verbs" in required or "all" in required:
            raise StepError(f"no virtual machine: {reason}")
        raise StepSkipped(f"no virtual machine: {reason}")
    if prepared.returncode != 0:
        raise StepError(reason)
    # Only now is there a header for the layouts to be compared with.
    run("go", "test", "./core/internal/libibverbs", env={"MOEWIRE_REQUIRE": "verbs"})
    with tempfile.TemporaryDirectory(prefix="moewire-rdma-") as name:
        tests, races = Path(name) / "verbs.test", Path(name) / "verbs-race.test"
        package = "./core/transport/verbs"
        run("go", "test", "-c", "-o", tests, package, env={"CGO_ENABLED": "0"})
        run("go", "test", "-c", "-race", "-o", races, package, env={"CGO_ENABLED": "1"})
        fabrics = Path(name) / "fabric.test"
        run("go", "test", "-c", "-o", fabrics, "./core/fabric", env={"CGO_ENABLED": "0"})
        groups = Path(name) / "ep.test"
        run("go", "test", "-c", "-o", groups, "./core/ep", env={"CGO_ENABLED": "0"})
        all_four = (
            f"{tests} && {races} -test.run='{RDMA_RACES}' && {fabrics} -test.run=TestOverVerbs"
            f" && {groups} -test.run='{RDMA_EP}'"
        )
        run(sys.executable, machine, "--timeout", "1800", "run", "--",
            f"export MOEWIRE_REQUIRE=verbs,inline,cable; {all_four}")  # fmt: skip


def kernels() -> None:
    """The CUDA kernels' code for a release, by the compilers that wheels/nvrtc pins."""
    run(BIN / "python", "wheels/build_kernels.py")


def wheel() -> None:
    """The release wheel, audited."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(BIN / "python", "-m", "build", "--wheel", "--no-isolation", "--outdir", DIST,
        env={"MOEWIRE_RELEASE": "1"})  # fmt: skip
    found = list(DIST.glob("*.whl"))
    if len(found) != 1:
        raise StepError(f"{DIST} should hold one wheel, has: {found}")
    run(BIN / "python", "wheels/audit.py", "--release", found[0])


def suites() -> list[str]:
    """The folders of tests/ that pytest runs."""
    found = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    rest = sorted(found.difference(SUITE_ORDER))
    return [name for name in SUITE_ORDER if name in found] + rest


def pytest(suite: str) -> None:
    """One folder of Python tests."""
    run(BIN / "python", "-m", "pytest", "-q", "--durations=5", f"tests/{suite}")


def all_steps() -> list[Step]:
    """In order: what fails quickly first."""
    steps = [
        Step("venv", venv),
        Step("gofmt", gofmt),
        Step("vet", vet),
        Step("staticcheck", staticcheck),
        Step("ruff", ruff, ("venv",)),
        Step("mypy", mypy, ("venv",)),
        Step("install", install, ("venv",)),
        Step("go-test", go_test),
        Step("go-race", go_race),
        Step("go-pure", go_pure),
        Step("fuzz", fuzz),
        Step("rdma", rdma),
        Step("kernels", kernels, ("venv",)),
        Step("wheel", wheel, ("venv", "kernels")),
    ]
    for suite in suites():
        needs = ("install", "wheel") if suite == "wheel" else ("install",)
        steps.append(Step(f"pytest-{suite}", lambda suite=suite: pytest(suite), needs))
    steps.append(Step("go-bench", go_bench))
    return steps


GROUPS = {"lint": ["venv", "gofmt", "vet", "staticcheck", "ruff", "mypy"]}


def prepare_environment() -> None:
    """Defaults that make a bare `env -i PATH=... HOME=...` enough."""
    os.environ.setdefault("UV_SYSTEM_CERTS", "1")  # uv otherwise trusts only its own list
    os.environ.setdefault("GOFLAGS", "-buildvcs=false")
    os.environ.setdefault("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    # A model hub is never asked: all models here are made or shipped.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ["PATH"] = f"{BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    os.environ.pop("PYTHONPATH", None)


def select(names: list[str]) -> list[Step]:
    """The steps behind names given on the command line."""
    steps = all_steps()
    if names == ["all"]:
        return steps
    wanted = [step for name in names for step in GROUPS.get(name, [name])]
    known = {step.name: step for step in steps}
    unknown = [name for name in wanted if name not in known]
    if unknown:
        sys.exit(f"no step {', '.join(unknown)}; there are: all, lint, {', '.join(known)}")
    return [known[name] for name in wanted]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quiet", action="store_true", help="no headings and no summary")
    parser.add_argument("steps", nargs="+")
    args = parser.parse_args()
    prepare_environment()
    outcome = run_steps(select(args.steps), args.quiet)
    if not args.quiet:
        print(summary(outcome), flush=True)
    return 0 if all(o.result in ("passed", "skipped") for o in outcome.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
