"""The steps that run Go's tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gotest
import record
import tiers
from common import ROOT, run, sources
from fuzz import fuzz_target, watched
from outcome import StepError, StepSkipped

MACHINE = ROOT / "tests" / "rdma" / "machine.py"

# What it ends with when there can be no machine.
MACHINE_FAILED = 125


# Go ends a package's tests after ten minutes by itself: too soon on a slow
# machine. Tests have bounds of their own; this one is for what is missed there.
GO_TEST = ["go", "test", "-timeout=40m", "-p=2"]

# Where tests run C: kernels of the processor, and those on the emulated device. What comes out is
# the same whatever Go's own part was built with, and the race detector sees nothing of it. There it
# runs what Go's own part does at once: threads, proxies, and ranks that are lost. `make test-long`
# has all of them under it.
EMULATED = "core/device/cuda"
RACES_BESIDE_C = {
    "core/device/cpu": "Team|Threads",
    EMULATED: "TestHosts(Exchange|AreApart|LoseARank|ProxyEnds)|TestLost",
    "core/ep/cuda": "^Test(Hosts(|Schedules|Processes)|Killed.*|Schedules|Process.*|Stop.*|Close.*"
    "|Late|PrepareWaitsFor.*|Records|Events)$",
    f"{EMULATED}/fifo": ".",
    f"{EMULATED}/images": ".",
}

# What is as long under the race detector, and shows no more: programs that are built anew, and
# each call of the driver failing.
NOT_RACED = "^(TestMutations|TestMutants|TestEveryFailure.*)$"

# What is another program without cgo: the CPU's kernels, and how native code is called.
WITHOUT_CGO = ["core/device/cpu", "core/internal/dl", "core/internal/libibverbs"]

# How a Go package says that it has more than one goroutine.
AT_ONCE = re.compile(r"\bgo \w+[.(]|\.Go\(|\bsync\.|\batomic\.|\bsynctest\.")


def go(step: str, *words: str, env: dict[str, str]) -> None:
    """Runs `go test` with words; keeps what its tests did under the step's name."""
    status, tests = go_command(*words, env=env)
    record.save(os.environ["MOEWIRE_TIER"], step, tests)
    if status != 0:
        raise StepError(f"exit status {status}: go test {' '.join(words)}")


def go_command(*words: str, env: dict[str, str]) -> tuple[int, list[record.Test]]:
    print("+", *(f"{k}={v}" for k, v in env.items()), "go test", *words, flush=True)
    return gotest.run([*GO_TEST, *words], ROOT, {**os.environ, **env})


def go_packages() -> dict[str, str]:
    """The folders with Go tests, and the text of all their files."""
    found: dict[str, str] = {}
    for name in sources("*.go"):
        folder = str(Path(name).parent)
        found[folder] = found.get(folder, "") + (ROOT / name).read_text()
    return {folder: text for folder, text in found.items() if "\nfunc Test" in text}


def concurrent_packages() -> list[str]:
    """The packages of the core that do several things at once, but those that are mostly C."""
    return [
        f"./{folder}"
        for folder, text in sorted(go_packages().items())
        if folder.startswith("core/") and AT_ONCE.search(text)
        if folder not in RACES_BESIDE_C and not folder.startswith(EMULATED)
    ]


# Real processes that are killed and frozen: not in `make check`.
PROCESSES = ("tests/blocks", "tests/chaos", "tests/multirank")


def go_check() -> None:
    """Every Go package without processes, the short form of its tests."""
    run("go", "build", "./...")
    packages = [f"./{name}" for name in sorted(go_packages()) if name not in PROCESSES]
    go("go-check", "-short", *packages, env={"CGO_ENABLED": "1"})


def go_test() -> None:
    """What neither go-race nor go-compute run, cgo on. The rest has more seeds of random tests."""
    env, raced = {"CGO_ENABLED": "1"}, concurrent_packages()
    names = {name for name in go_packages() if not only_computes(name)}
    go("go-test", "-short", *sorted({f"./{name}" for name in names} - {*raced}), env=env)
    go("go-test-plain", "-short", f"-run=^({'|'.join(plain(raced))})$", *raced, env=env)


def go_compute() -> None:
    """What only computes, cgo on: the kernels on the emulated device, the models, the words."""
    names = sorted(f"./{name}" for name in go_packages() if only_computes(name))
    go("go-compute", "-short", *names, env={"CGO_ENABLED": "1"})


# Packages, and what is below them: their tests have no bound of time but one for what hangs.
COMPUTES = (EMULATED, "core/device/cpu", "tests/boundaries", "tests/model")


def only_computes(package: str) -> bool:
    return package in COMPUTES or package.startswith(tuple(f"{name}/" for name in COMPUTES))


def plain(packages: list[str]) -> list[str]:
    """The tests of packages that are not run under the race detector, or do less there."""
    return sorted(
        {
            test.name
            for test in tests_of_go()
            if f"./{test.package}" in packages
            if "race" in test.marks or re.search(NOT_RACED, test.name)
        }
    )


def go_race() -> None:
    """What does several things at once, under the race detector."""
    env, race = {"CGO_ENABLED": "1"}, ["-race", "-short", f"-skip={NOT_RACED}"]
    go("go-race", *race, *concurrent_packages(), env=env)
    for number, (package, pattern) in enumerate(RACES_BESIDE_C.items(), 1):
        go(f"go-race-{number}", *race, f"-run={pattern}", f"./{package}", env=env)


def go_pure() -> None:
    """What differs without cgo, and the plain Go kernels."""
    run("go", "build", "./core/...", env={"CGO_ENABLED": "0"})
    packages = [f"./{name}" for name in WITHOUT_CGO]
    go("go-pure", "-short", *packages, env={"CGO_ENABLED": "0"})


def tests_of_go() -> list[tiers.GoTest]:
    """Every Go test of the tree; where they do not say their tiers as they should, an error."""
    found, wrong = tiers.go_tests(ROOT, sources("*.go"))
    if wrong:
        raise StepError("\n".join(wrong))
    return found


def go_all() -> None:
    """The Go tests that `make test` has left out, and the long form of those that have one."""
    rest: dict[str, list[str]] = {}
    for test in tests_of_go():
        if test.in_rest:
            rest.setdefault(test.package, []).append(test.name)
    go_each("go-all", rest)


# The packages with the longest tests of the rest begin, the first as two commands.
LONGEST = [EMULATED, "core/ep/cpu", "core/ep/cuda", "tests/chaos"]


def shares(names: dict[str, list[str]]) -> list[tuple[str, list[str]]]:
    """The commands that go_each runs: a package, and those of its tests named."""
    order = [*(name for name in LONGEST if name in names), *sorted(names.keys() - {*LONGEST})]
    found = []
    for package in order:
        parts = 2 if package == LONGEST[0] else 1
        found += [(package, names[package][i::parts]) for i in range(parts)]
    return [share for share in found if share[1]]


def go_each(step: str, names: dict[str, list[str]]) -> None:
    """Runs the tests named of each package, two commands at a time."""

    def one(share: tuple[str, list[str]]) -> tuple[int, list[record.Test]]:
        package, tests = share
        return go_command(f"-run=^({'|'.join(tests)})$", f"./{package}", env={"CGO_ENABLED": "1"})

    all_shares = shares(names)
    with ThreadPoolExecutor(max_workers=2) as pool:
        ended = list(pool.map(one, all_shares))
    record.save(os.environ["MOEWIRE_TIER"], step, [t for _, tests in ended for t in tests])
    wrong = {of[0] for of, (status, _) in zip(all_shares, ended, strict=True) if status != 0}
    if wrong:
        raise StepError(f"tests failed in {', '.join(sorted(wrong))}")


def go_bench() -> None:
    """Every benchmark once, so that they stay alive."""
    texts = {name: (ROOT / name).read_text() for name in sources("*_test.go")}
    folders = {Path(name).parent for name, text in texts.items() if "\nfunc Benchmark" in text}
    packages = sorted(f"./{folder}" for folder in folders)
    run("go", "test", "-run=^$", "-bench=.", "-benchtime=1x", *packages)


def go_long() -> None:
    """Every Go test with many seeds and thousands of faults, every mutant; races everywhere."""
    env = {**tiers.long_values(), "CGO_ENABLED": "1"}
    go("go-long", "-timeout=12h", "-count=1", "./...", env=env)
    packages = [f"./{name}" for name in sorted(go_packages()) if name.startswith("core/")]
    race = ["-timeout=12h", "-race", f"-skip={NOT_RACED}"]
    go("go-long-race", *race, *packages, env={"CGO_ENABLED": "1"})


def fuzz_long() -> None:
    """Every Go fuzz target for two minutes."""
    fuzz_each(tiers.long_values()["MOEWIRE_FUZZ_SECONDS"])


# What the fuzzing of all Go targets may take, without the builds.
FUZZ_TOTAL_SECONDS = 50


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
    share = max(1, FUZZ_TOTAL_SECONDS // max(1, len(fuzz_targets())))
    seconds = os.environ.get("MOEWIRE_FUZZ_SECONDS", str(share))
    fuzz_each(seconds, "-parallel=1")  # the other processor has other steps


def fuzz_each(seconds: str, *flags: str) -> None:
    for package, target in fuzz_targets():
        wrong = fuzz_target(target, package, seconds, lambda words: watched(words, ROOT), flags)
        if wrong:
            raise StepError(wrong)


# What the race detector watches in the virtual machine: it makes all slower.
RDMA_RACES = "Concurrent|RetireUnderLoad|Mixture|Wake|WaitSees|ES2No"

# Dispatch and combine between processes over RDMA, the death of one, bad networks and devices.
RDMA_EP = "TestProcesses/(rdma|auto)|TestProcessKilled/rdma|TestWeather/rdma|TestGoesOver"

# What takes long there and meets no device: it runs over a library of tests, in `make test`.
RDMA_BESIDE = "^Test(DC|Link)"


def rdma() -> None:
    """The verbs carrier, and fabrics and EP over it, on soft-RoCE devices in a virtual machine."""
    prepare_machine()
    with tempfile.TemporaryDirectory(prefix="moewire-rdma-") as name:
        tests, fabrics, groups = (Path(name) / f"{part}.test" for part in ("verbs", "fabric", "ep"))
        compile_tests(tests, "./core/transport/verbs")
        compile_tests(fabrics, "./core/fabric")
        compile_tests(groups, "./core/ep/cpu")
        on_machine(
            f"{tests} -test.skip='{RDMA_BESIDE}' && {fabrics} -test.run=TestOverVerbs"
            f" && {groups} -test.run='{RDMA_EP}'",
        )


def rdma_long() -> None:
    """The verbs carrier under the race detector, and TCP in bad weather, in a virtual machine."""
    prepare_machine()
    with tempfile.TemporaryDirectory(prefix="moewire-rdma-") as name:
        races, groups = (Path(name) / f"{part}.test" for part in ("verbs-race", "ep"))
        compile_tests(races, "./core/transport/verbs", "-race", cgo="1")
        compile_tests(groups, "./core/ep/cpu")
        on_machine(f"{races} -test.run='{RDMA_RACES}' && {groups} -test.run=TestWeather/tcp")


def compile_tests(to: Path, package: str, *words: str, cgo: str = "0") -> None:
    """One package's tests as a program."""
    run("go", "test", "-c", *words, "-o", to, package, env={"CGO_ENABLED": cgo})


def on_machine(command: str) -> None:
    """Runs a command in the virtual machine, where nothing may be lacking."""
    run(sys.executable, MACHINE, "--timeout", "1800", "run", "--",
        f"export MOEWIRE_REQUIRE=verbs,inline,cable; {command}")  # fmt: skip


def prepare_machine() -> None:
    """Fetches what the virtual machine is made of; skips the step where there can be none."""
    prepared = subprocess.run(
        [sys.executable, MACHINE, "prepare"],
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


def complete() -> None:
    """Every test was in one tier: what `make test` left to the rest has run, nothing ran twice."""
    if not record.load("test"):
        raise StepSkipped("`make test` has not run before")
    wrong = record.forgotten(tests_of_go())
    if wrong:
        raise StepError("\n".join(wrong))
    print(f"{len(record.load('test'))} in `make test`, {len(record.load('all'))} in the rest")
