"""What only a machine with a GPU can show: `make gpu-test` and `make gpu-bench`.

    python3 .ci/gpu.py test         the Go suites of core/device/cuda on the real driver
    python3 .ci/gpu.py bench        times, beside a plain copy of the same run
    python3 .ci/gpu.py build        only the programs, for a machine without Go
    python3 .ci/gpu.py test --emulated

Each takes less than ten minutes, and leaves NAME.json and NAME.md in build/gpu: what ran, and on
what. Without a device it says so and ends with 0, or with 1 where MOEWIRE_REQUIRE has cuda or all.
Needs Go, or what `build` left. The kernels' code is that of `make kernels` if it was made, else
NVRTC's.

--emulated runs the same on the emulated driver, in small: it shows that this script works, and
nothing else. Its files say so, and are named otherwise.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / "build" / "gpu"
PACKAGE = ROOT / "core" / "device" / "cuda"
ARCHIVE = ROOT / "build" / "kernels" / "kernels.bin"
TESTS, BENCH, EMULATOR = PLACE / "cuda.test", PLACE / "gpubench", PLACE / "emulator.so"
DRIVER = "libcuda.so.1"
# Seconds, of everything.
BUDGET = 570

# Name, -test.run, and what is set besides. The whole suite runs on the code that users get.
SUITES = [
    ("suites", ".", {}),
    ("suites on PTX", "TestExchange|TestForms", {"MOEWIRE_CUDA_CODE": "ptx"}),
    ("suites on NVRTC's code", "TestExchange|TestForms", {"MOEWIRE_CUDA_CODE": "compile"}),
]
SANITIZERS = ["memcheck", "racecheck", "synccheck"]
# Of the compute-sanitizer, which is slow.
SANITIZED = "TestExchange/ranks=2"
BENCHES = [
    ["-tokens", "1024"],
    ["-tokens", "1024", "-fp8"],
    ["-tokens", "2048", "-fp8"],
    ["-tokens", "128"],
    ["-tokens", "128", "-fp8"],
]
# The baseline that rows are compared with; its code is NVRTC's.
BASELINES = [[*more, "-baseline"] for more in BENCHES]
# How programs end. gpubench ends with 3 where the device has too little memory.
OUTCOMES = {0: "passed", 3: "does not fit", None: "out of time"}
FINE = ("passed", "does not fit", "not there")
SMALL = ["-ranks", "2", "-tokens", "4", "-hidden", "128", "-topk", "2", "-experts", "4",
         "-ops", "2", "-replays", "2", "-host-ops", "2", "-copy", "1000000"]  # fmt: skip


@dataclass
class Row:
    """One command: how it ended, and what it said of itself."""

    name: str
    outcome: str  # failed, or one of OUTCOMES; "not there": what it needs is not installed
    seconds: float = 0.0
    tests: dict[str, int] = field(default_factory=dict)
    said: str = ""
    result: dict[str, Any] = field(default_factory=dict)


class Run:
    """Commands within one budget of time."""

    def __init__(self, emulated: bool) -> None:
        self.emulated = emulated
        self.end = time.monotonic() + BUDGET
        self.driver = str(EMULATOR) if emulated else DRIVER
        self.env = {
            **os.environ,
            # Ranks that share the device wait for one another: each stream needs a queue.
            "CUDA_DEVICE_MAX_CONNECTIONS": "32",
            "MOEWIRE_CUDA_TEST": self.driver,
        }
        if nvrtc := packaged_nvrtc():
            self.env.setdefault("MOEWIRE_NVRTC", nvrtc)

    def command(self, words: list[str], env: dict[str, str], cwd: Path) -> tuple[int | None, str]:
        """Its status, None if it ran out of time, and its output."""
        left = self.end - time.monotonic()
        if left < 1:
            return None, "no time was left for it"
        print("+", *words, flush=True)
        with subprocess.Popen(
            words, cwd=cwd, env={**self.env, **env}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        ) as child:  # fmt: skip
            try:
                text, _ = child.communicate(timeout=left)
                return child.returncode, text
            except subprocess.TimeoutExpired:
                child.kill()
                return None, child.communicate()[0]

    def row(self, name: str, words: list[str], env: dict[str, str], cwd: Path = PACKAGE) -> Row:
        begin = time.monotonic()
        status, text = self.command(words, env, cwd)
        outcome = OUTCOMES.get(status, "failed")
        tests = {w: len(re.findall(rf"--- {w}: ", text)) for w in ("PASS", "FAIL", "SKIP")}
        if outcome == "passed" and "-test.v" in words and not tests["PASS"]:
            outcome = "failed"  # a suite that skips everything has shown nothing
        row = Row(name, outcome, round(time.monotonic() - begin, 1), tests)
        if outcome != "passed":
            row.said = text[-4000:]
            print(row.said)
        elif text.startswith("{"):
            row.result = json.loads(text)
        print(f"{row.outcome:12} {row.name}", flush=True)
        return row


def packaged_nvrtc() -> str:
    """The folder of the compiler in the virtual environment of the tests; "" without."""
    venv = Path(os.environ.get("MOEWIRE_VENV") or ROOT / ".venv")
    found = sorted(venv.glob("lib/python3*/site-packages/nvidia/cu*/lib/libnvrtc.so.1?"))
    return str(found[-1].parent) if found else ""


# ----------------------------------------------------------------- programs --


def build(emulated: bool) -> str:
    """Builds the programs; what is wrong, "" for nothing."""
    PLACE.mkdir(parents=True, exist_ok=True)
    if shutil.which("go") is None:
        return "" if TESTS.is_file() and BENCH.is_file() else "no go on PATH, nothing built before"
    flags = ["-buildvcs=false"]
    if ARCHIVE.is_file():
        overlay = PLACE / "overlay.json"
        embedded = PACKAGE / "images" / "prebuilt" / "kernels.bin"
        overlay.write_text(json.dumps({"Replace": {str(embedded): str(ARCHIVE)}}))
        flags.append(f"-overlay={overlay}")
    env = {**os.environ, "CGO_ENABLED": "0"}
    for words in (
        ["go", "test", "-c", *flags, "-o", str(TESTS), "./core/device/cuda"],
        ["go", "build", *flags, "-o", str(BENCH), "./core/device/cuda/gpubench"],
    ):
        done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True)
        if done.returncode:
            return done.stdout + done.stderr
    return give_emulator() if emulated else ""


def give_emulator() -> str:
    env = {**os.environ, "MOEWIRE_CUDA_GIVE": str(EMULATOR), "MOEWIRE_CUDA_TEST": ""}
    done = subprocess.run(
        [TESTS, "-test.run=^TestGiveEmulator$", "-test.v"],
        cwd=PACKAGE, env=env, capture_output=True, text=True,
    )  # fmt: skip
    return "" if EMULATOR.is_file() and not done.returncode else done.stdout + done.stderr


# --------------------------------------------------------------- conditions --


def no_device() -> str:
    """Why there is no CUDA device; "" if there is one."""
    try:
        cuda = ctypes.CDLL(DRIVER)
    except OSError as err:
        return f"no driver: {err}"
    if status := cuda.cuInit(0):
        return f"cuInit gives {status}"
    count = ctypes.c_int()
    status = cuda.cuDeviceGetCount(ctypes.byref(count))
    return "" if not status and count.value else f"{count.value} devices (status {status})"


def said_by(*words: str) -> str:
    """The output of a command; "" if it cannot be had."""
    try:
        return subprocess.run(
            words, cwd=ROOT, capture_output=True, text=True, check=True, timeout=30
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


QUERY = ("name,driver_version,memory.total,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,"
         "power.limit,temperature.gpu,mig.mode.current")  # fmt: skip


def conditions(emulated: bool) -> dict[str, str]:
    """On what it ran."""
    found = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}
    if emulated:
        found["device"] = "EMULATED on the CPU: no result of a GPU"
    else:
        values = said_by("nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader", "-i", "0")
        names = QUERY.split(",")
        found |= dict(zip(names, map(str.strip, values.split(",")), strict=False))
        found.setdefault("name", "unknown: nvidia-smi says nothing")
    found["commit"] = said_by("git", "describe", "--always", "--dirty")
    found["go"] = said_by("go", "env", "GOVERSION")
    found["host"] = f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}"
    return {key: value for key, value in found.items() if value}


# --------------------------------------------------------------------- work --


def run_tests(run: Run) -> list[Row]:
    """The suites, then those under the sanitizer."""
    binary = str(TESTS)
    if run.emulated:
        env = {"MOEWIRE_CUDA_REPLAYS": "1"}
        some = "TestExchange/ranks=2|TestReplays/ranks=2|TestLateIsReported|TestEveryFailure"
        return [run.row("suites", [binary, "-test.v", f"-test.run={some}"], env)]
    rows = []
    env = {"MOEWIRE_REQUIRE": "cuda"}
    for name, pattern, more in SUITES:
        words = [binary, "-test.v", "-test.timeout=240s", f"-test.run={pattern}"]
        if "ptx" in more.values() and not ARCHIVE.is_file():
            rows.append(Row(name, "not there"))  # `make kernels` makes it
            continue
        rows.append(run.row(name, words, {**env, **more}))
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    for tool in SANITIZERS:
        name = f"compute-sanitizer {tool}"
        if not Path(sanitizer).is_file():
            rows.append(Row(name, "not there"))
            continue
        words = [sanitizer, "--tool", tool, "--error-exitcode", "77", binary, "-test.v",
                 "-test.timeout=120s", f"-test.run={SANITIZED}"]  # fmt: skip
        rows.append(run.row(name, words, env))
    return rows


def run_benches(run: Run) -> list[Row]:
    """Times. A size that does not fit is a row that says so."""
    common = [str(BENCH), "-driver", run.driver]
    if run.emulated:
        return [run.row("small", [*common, "-emulated", *SMALL], {})]
    return [run.row(" ".join(more), [*common, *more], {}) for more in BENCHES + BASELINES]


def table(title: str, found: dict[str, str], rows: list[Row]) -> str:
    """The results as Markdown."""
    lines = [f"# {title}", "", "| condition | |", "|---|---|"]
    lines += [f"| {key} | {value} |" for key, value in found.items()]
    lines += ["", "| what | outcome | seconds | tests |", "|---|---|---|---|"]
    for row in rows:
        tests = ", ".join(f"{n} {word.lower()}" for word, n in row.tests.items() if n)
        lines.append(f"| {row.name} | {row.outcome} | {row.seconds} | {tests} |")
    timed = [row.result for row in rows if row.result]
    if timed:
        lines += ["", *bench_table(timed)]
    return "\n".join(lines) + "\n"


def bench_table(results: list[dict[str, Any]]) -> list[str]:
    """Logical ranks on one device share its memory: this says nothing of links between GPUs."""
    head = ["what", "R", "T", "H", "K", "E", "fp8", "slots", "copy GB/s", "dispatch us", "of floor",
            "combine us", "of floor", "parts of rank 0, us", "host us per launch",
            "Go allocations", "code"]  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for r in results:
        parts = r["rank_0_parts_us"] or {}
        cells = [r["what"], r["ranks"], r["tokens_per_rank"], r["hidden"], r["topk"], r["experts"],
                 r["fp8"], r["slots"], f"{r['copy_gb_per_s']:.0f}", f"{r['dispatch_us']:.1f}",
                 f"{r['dispatch_of_floor']:.2f}", f"{r['combine_us']:.1f}",
                 f"{r['combine_of_floor']:.2f}",
                 ", ".join(f"{k} {v:.1f}" for k, v in sorted(parts.items())),
                 f"{r['host_us_per_launch']:.2f}", f"{r['go_allocations_per_op']:.2f}",
                 r["code"]]  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    notes = (
        "R logical ranks on one GPU, so bound by its memory. Time is per operation of all ranks,"
        " in graphs, the best of several replays. The floor is the time in which a plain copy of"
        " the same run moves the bytes that the format must touch; 1.00 is its speed. Below"
        " T = 1024 caches hold much of it, and the floor is not valid. The baseline is our own"
        " writing of the four copies that others make (core/device/cuda/gpubench/baseline); it is"
        " launched without graphs, each phase of all ranks before the next, and held to our floor."
    )
    return [*lines, "", notes]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["test", "bench", "build"])
    parser.add_argument("--emulated", action="store_true", help="a dry run, without a GPU")
    args = parser.parse_args()
    reason = "" if args.emulated or args.what == "build" else no_device()
    if reason:
        required = {"cuda", "all"} & set(os.environ.get("MOEWIRE_REQUIRE", "").split(","))
        print(f"{'required' if required else 'skipped'}: no CUDA device here: {reason}")
        return 1 if required else 0
    if wrong := build(args.emulated):
        print(f"the programs cannot be built: {wrong}", file=sys.stderr)
        return 1
    if args.what == "build":
        return 0
    run = Run(args.emulated)
    found = conditions(args.emulated)
    rows = run_tests(run) if args.what == "test" else run_benches(run)
    name = f"{'emulated-' if args.emulated else ''}gpu-{args.what}"
    title = f"{'EMULATED, no result: ' if args.emulated else ''}make gpu-{args.what}"
    report = {"title": title, "conditions": found, "rows": [asdict(row) for row in rows]}
    (PLACE / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    (PLACE / f"{name}.md").write_text(table(title, found, rows))
    print((PLACE / f"{name}.md").read_text())
    return int(any(row.outcome not in FINE for row in rows))


if __name__ == "__main__":
    sys.exit(main())
