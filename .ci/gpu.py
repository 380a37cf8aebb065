"""What only a machine with a GPU can show: `make gpu-test` and `make gpu-bench`.

    python3 .ci/gpu.py test         the suites on the real driver: engine, groups, Python, sanitizer
    python3 .ci/gpu.py bench        times, beside a plain copy of the same run
    python3 .ci/gpu.py build        all that a machine without Go needs, into build/gpu
    python3 .ci/gpu.py test --emulated
    python3 .ci/gpu.py test --only 'Python|memcheck' --seconds 120

Each takes less than ten minutes behind building, and leaves NAME.json, NAME.md and NAME.log in
build/gpu: what ran, on what, and all that was written. They are written anew behind each suite.
Without a device it says so and ends with 0, or with 1 where MOEWIRE_REQUIRE has cuda or all; then
suites that lack something fail `test`, too. Needs Go, or what `build` left. The kernels' code is
that of `make kernels` if it was made, else NVRTC's.

--emulated runs the same on the emulated driver, in small: it shows that this script works, and
nothing else. Its files say so, and are named otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

import gpu_build as built
from gpu_report import DRIVER, conditions, no_device, table
from gpu_run import FINE, Row, Run, Suite

# Seconds, of everything but building.
BUDGET = 580

# Under a sanitizer all is slow; several ranks have to run at a time. One form of each kind: rows of
# bf16, fp8 and its scales, sums by rank, flat rows, replays, and a rank that is lost or late.
EXCHANGED = "TestExchange/ranks=2|TestForms/^(round_scale|UE8M0|pre-reduced|in_order|flat)$"
# Not TestFlatHoles: under a sanitizer a wait for one stream is a wait for all of them.
LOST = "TestLostWhileOthersWait|TestTimedOutIsReported"
SANITIZED = {
    "memcheck": f"{EXCHANGED}|{LOST}|TestReplays/ranks=2/length=3",
    "racecheck": EXCHANGED,  # of shared memory, within a block
    "synccheck": f"{EXCHANGED}|{LOST}",
    "initcheck": "TestExchange/ranks=2",  # it may not know what the host has written
}
# The most informative first.
BENCHES = [
    ["-tokens", "1024"],
    ["-tokens", "1024", "-baseline"],
    ["-tokens", "128"],
    ["-tokens", "128", "-baseline"],
    ["-tokens", "1024", "-fp8"],
    ["-tokens", "1024", "-fp8", "-baseline"],
    ["-tokens", "128", "-fp8"],
    ["-tokens", "128", "-fp8", "-baseline"],
    ["-tokens", "2048", "-fp8"],
    ["-tokens", "2048", "-fp8", "-baseline"],
]
# The same with fewer and more loads under way than the shape's: what core/device/cuda/variants.go
# chooses by.
VARIANTS = [
    ["-tokens", tokens, "-fp8", "-loads", loads]
    for tokens in ("128", "1024")
    for loads in ("1", "3")
]
BENCH_SECONDS = 24
# Checks what the engine assumes of a device: nothing is timed.
PROBES = ["-probes"]
PROBE_SECONDS = 12
PEER_SECONDS = 45
# Beside a peer, which has one rank per device.
ALONE = [
    ["-ranks", "1", "-tokens", "128"],
    ["-ranks", "1", "-tokens", "128", "-fp8"],
    ["-ranks", "1", "-tokens", "128", "-fp8", "-baseline"],
]
# Ranks that are processes, one of which is killed or stopped. They have a program of their own: if
# a test ends its program, the tests after it do not run.
PROCESSES = "^(TestProcess|TestHosts(Processes|Killed|Frozen)$)"
REMOTE = "^TestHosts"
SMALL = ["-ranks", "2", "-tokens", "4", "-hidden", "128", "-topk", "2", "-experts", "4",
         "-ops", "2", "-replays", "2", "-host-ops", "2", "-copy", "1000000"]  # fmt: skip
PYTHON_TESTS = [
    "test_cuda.py",
    "test_cuda_graphs.py",
    "test_cuda_observe.py",
    "test_cuda_example.py",
]
# The jobs of the CPU: of these files, what is parametrised by the device.
CARRIED_TESTS = [
    f"test_{name}.py" for name in ("group", "input", "life", "faults", "order", "oracle")
]
HOSTS_TESTS = ["../multihost/test_cuda_hosts.py"]
# On one device all ranks share it: processes that are other hosts to each other by their variables.
HOSTS_CASES = "killed or frozen or late or closes"
INTERFACE_TESTS = ["test_cuda_deep_ep.py", "test_cuda_compat.py", "test_cuda_autograd.py"]


def environment(emulated: bool) -> dict[str, str]:
    """Of every suite."""
    env = {
        **os.environ,
        # Ranks that share the device wait for one another: each stream needs a queue. And no kernel
        # may be loaded meanwhile, because loading waits for the device.
        "CUDA_DEVICE_MAX_CONNECTIONS": "32",
        "CUDA_MODULE_LOADING": "EAGER",
        "MOEWIRE_CUDA_TEST": str(built.EMULATOR) if emulated else DRIVER,
        "PYTHONPATH": os.pathsep.join(str(built.ROOT / name) for name in ("python", ".ci")),
        "PYTHONUNBUFFERED": "1",
    }
    if built.LIBRARY.is_file():
        env["MOEWIRE_LIBRARY"] = str(built.LIBRARY)
    if nvrtc := packaged_nvrtc():
        env.setdefault("MOEWIRE_NVRTC", nvrtc)
    if not emulated:
        env["MOEWIRE_REQUIRE"] = "cuda"
    return env


def packaged_nvrtc() -> str:
    """The folder of the compiler among the packages of the Python that has torch; "" without."""
    lib = Path(built.python()).parent.parent / "lib"
    found = sorted(lib.glob("python3*/site-packages/nvidia/cu*/lib/libnvrtc.so.1?"))
    return str(found[-1].parent) if found else ""


def go_suite(
    name: str, binary: Path, cwd: Path, pattern: str, seconds: float, skip: str = "", **env: str
) -> Suite:
    """A suite of a test program, which ends itself with all goroutines' stacks shortly before."""
    words = [str(binary), "-test.v", f"-test.timeout={seconds - 3}s", f"-test.run={pattern}"]
    words += [f"-test.skip={skip}"] if skip else []
    return Suite(name, words, seconds, env, cwd)


def python_suite(
    seconds: float,
    *more: str,
    name: str = "Python, with torch's tensors",
    tests: list[str] | None = None,
) -> Suite:
    """test_cuda.py and its like, with none of the tree's own settings of pytest."""
    settings = built.PLACE / "pytest.ini"
    settings.write_text("[pytest]\n")
    files = [str(built.ROOT / "tests" / "python" / file) for file in tests or PYTHON_TESTS]
    words = [built.python(), "-m", "pytest", "-c", str(settings), "-p", "no:cacheprovider", "-v",
             "-p", "gpu_pytest", "--durations=10", "--tb=short",
             "-o", f"faulthandler_timeout={seconds - 10}", *more, *files]  # fmt: skip
    lacks = built.lacking(("torch", "numpy", "pytest"))
    return Suite(name, words, seconds, {}, built.PLACE, lacks=lacks)


def sanitizer() -> str:
    """The program: of PATH, a toolkit or the package nvidia-cuda-sanitizer-api; "" without."""
    lib = Path(built.python()).parent.parent / "lib"
    packaged = sorted(lib.glob("python3*/site-packages/nvidia/cu*/compute-sanitizer/"))
    carried = [Path(os.environ.get("MOEWIRE_SANITIZER") or os.devnull)]
    found = [Path(shutil.which("compute-sanitizer") or os.devnull),
             Path("/usr/local/cuda/bin/compute-sanitizer")]  # fmt: skip
    found += [folder / "compute-sanitizer" for folder in packaged]
    return next((str(path) for path in carried + found if path.is_file()), "")


def sanitizer_suite(tool: str, seconds: float) -> Suite:
    program = sanitizer()
    suite = go_suite(
        f"compute-sanitizer {tool}", built.ENGINE_TESTS, built.CUDA, SANITIZED[tool], seconds,
        MOEWIRE_CUDA_REPLAYS="3",
    )  # fmt: skip
    words = [program, "--tool", tool, "--error-exitcode", "77", *suite.words]
    if tool == "memcheck":  # the engine asks for fabric handles, which a device may refuse
        words[1:1] = ["--report-api-errors", "no"]
    lacks = "" if program else (
        "no compute-sanitizer on PATH, in /usr/local/cuda, among torch's packages"
        " (nvidia-cuda-sanitizer-api) or where MOEWIRE_SANITIZER says"
    )  # fmt: skip
    return Suite(suite.name, words, seconds, suite.env, suite.cwd, lacks=lacks)


def tests() -> list[Suite]:
    """In order of value, each with a share of time: about twice what it took on an H100, where
    that is known.

    Most end sooner, and what they leave is the next ones'.
    """
    engine, groups = built.ENGINE_TESTS, built.GROUP_TESTS
    ptx = go_suite("engine on PTX", engine, built.CUDA, EXCHANGED, 45,
                   MOEWIRE_CUDA_CODE="ptx")  # fmt: skip
    if not built.stamp().get("prebuilt"):
        ptx = Suite(ptx.name, ptx.words, ptx.seconds, lacks="no prebuilt kernels: make kernels")
    return [
        go_suite("engine", engine, built.CUDA, ".", 40, skip=REMOTE),
        go_suite("engine: ranks of other hosts", engine, built.CUDA, REMOTE, 50),
        go_suite("groups: threads", groups, built.GROUPS, ".", 20, skip=PROCESSES),
        go_suite("groups: processes by each way", groups, built.GROUPS, PROCESSES, 65),
        python_suite(88),
        python_suite(60, name="Python, other interfaces and gradients", tests=INTERFACE_TESTS),
        python_suite(42, "-k", HOSTS_CASES, name="Python, ranks of other hosts", tests=HOSTS_TESTS),
        python_suite(80, "-k", "cuda", name="Python, jobs of the CPU", tests=CARRIED_TESTS),
        sanitizer_suite("memcheck", 30),
        sanitizer_suite("synccheck", 15),
        sanitizer_suite("initcheck", 7),
        sanitizer_suite("racecheck", 8),
        ptx,
        go_suite("engine on NVRTC's code", engine, built.CUDA, EXCHANGED, 30,
                 MOEWIRE_CUDA_CODE="compile"),
    ]  # fmt: skip


def emulated_tests() -> list[Suite]:
    some = "TestExchange/ranks=2|TestReplays/ranks=2|TestTimedOutIsReported|TestEveryFailureIs"
    group = "TestDispatchAndCombine|TestLate|TestProcesses"
    one = "two_streams or copied or processes or epochs or stopped"
    return [
        go_suite("engine", built.ENGINE_TESTS, built.CUDA, some, 140, MOEWIRE_CUDA_REPLAYS="1"),
        go_suite("groups", built.GROUP_TESTS, built.GROUPS, group, 70),
        python_suite(160, "-k", one),
        python_suite(
            60, "-k", "late or closes", name="Python, ranks of other hosts", tests=HOSTS_TESTS
        ),
    ]


def host_cost(*more: str) -> Suite:
    """What calls from Python cost."""
    program = built.ROOT / "tests" / "python" / "programs" / "cuda_host_cost.py"
    lacks = built.lacking(("torch", "numpy"))
    words = [built.python(), str(program), *more]
    return Suite("calls from Python", words, 60, {}, built.PLACE, tests=False, lacks=lacks)


def peer(*more: str, name: str = "peer") -> Suite:
    """The kernels of DeepEP, if MOEWIRE_PEER says where it lies, outside the tree."""
    folder = os.environ.get("MOEWIRE_PEER", "")
    program = built.ROOT / ".ci" / "gpu_peer.py"
    words = [built.python(), str(program), folder, *more]
    lacks = built.lacking(("torch",))
    if not folder:
        lacks = "MOEWIRE_PEER does not say where one lies: no kernel of others was timed"
    elif not (Path(folder) / "deep_ep").is_dir():
        lacks = f"MOEWIRE_PEER={folder} has no folder deep_ep: no kernel of others was timed"
    return Suite(name, words, PEER_SECONDS, {}, built.PLACE, tests=False, lacks=lacks)


def benches(emulated: bool) -> list[Suite]:
    """Times. A size that does not fit is a row that says so."""
    common = [str(built.BENCH), "-driver", str(built.EMULATOR) if emulated else DRIVER]
    if emulated:
        small = [
            Suite(name, [*common, "-emulated", *SMALL, *more], 60, cwd=built.PLACE, tests=False)
            for name, more in (("probes", PROBES), ("small", []), ("baseline", ["-baseline"]))
        ]
        return [*small, host_cost("--emulator", str(built.EMULATOR), "--times", "50")]
    probes = Suite("probes", [*common, *PROBES], PROBE_SECONDS, cwd=built.PLACE, tests=False)
    rows = [
        Suite(" ".join(more), [*common, *more], BENCH_SECONDS, cwd=built.PLACE, tests=False)
        for more in [*BENCHES, *ALONE, *VARIANTS]
    ]
    peers = [peer(name="peer, bf16"), peer("--fp8", name="peer, fp8")]
    return [probes, *rows[:4], host_cost(), *rows[4:], *peers]


def write(name: str, what: str, emulated: bool, rows: list[Row], out: Path) -> str:
    """Writes what there is so far; gives the table."""
    found = conditions(emulated)
    title = f"{'EMULATED, no result: ' if emulated else ''}make gpu-{what}"
    report = {"title": title, "conditions": found, "rows": [asdict(row) for row in rows]}
    (out / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    text = table(title, found, rows)
    (out / f"{name}.md").write_text(text)
    return text


def chosen(what: str, emulated: bool, only: str) -> list[Suite]:
    """The suites whose name has ``only``, a pattern; all without."""
    if what == "test":
        suites = emulated_tests() if emulated else tests()
    else:
        suites = benches(emulated)
    return [suite for suite in suites if re.search(only, suite.name)]


def run(what: str, emulated: bool, out: Path, only: str = "", seconds: float = BUDGET) -> int:
    """Runs the suites; the exit status."""
    suites = chosen(what, emulated, only)
    if not suites:
        print(f"--only {only}: no suite has such a name", file=sys.stderr)
        return 2
    name = f"{'emulated-' if emulated else ''}gpu-{what}"
    out.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for row in Run(seconds, environment(emulated), out / f"{name}.log").rows(suites):
        rows.append(row)
        write(name, what, emulated, rows, out)
    print(write(name, what, emulated, rows, out))
    absent = [row.name for row in rows if row.outcome == "not there"]
    if absent:
        print(f"{len(absent)} of {len(rows)} suites did not run: {'; '.join(absent)}")
    failed = any(row.outcome not in FINE for row in rows)
    return int(failed or (what == "test" and bool(absent) and required()))


def required() -> bool:
    """Whether what is not there is a failure."""
    return bool({"cuda", "all"} & set(os.environ.get("MOEWIRE_REQUIRE", "").split(",")))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["test", "bench", "build"])
    parser.add_argument("--emulated", action="store_true", help="a dry run, without a GPU")
    parser.add_argument("--built", action="store_true", help="with what `build` left, also with Go")
    parser.add_argument("--out", type=Path, default=built.PLACE, help="a folder for the results")
    parser.add_argument("--only", default="", help="a pattern of suites' names; without: all")
    parser.add_argument("--seconds", type=float, default=BUDGET, help="for all suites together")
    args = parser.parse_args()
    reason = "" if args.emulated or args.what == "build" else no_device()
    if reason:
        print(f"{'required' if required() else 'skipped'}: no CUDA device here: {reason}")
        return int(required())
    try:
        if args.built or not shutil.which("go"):
            built.find()
        else:
            built.build(args.emulated, anew=args.what == "build")
        if args.what == "build":
            print(built.report())
            return 0
    except built.CannotBuildError as err:
        print(f"the programs cannot be built: {err}", file=sys.stderr)
        return 1
    return run(args.what, args.emulated, args.out.resolve(), args.only, args.seconds)


if __name__ == "__main__":
    sys.exit(main())
