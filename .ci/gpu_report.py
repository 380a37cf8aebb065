"""On what the suites ran, and their results as tables for docs/cuda.md and docs/performance.md."""

from __future__ import annotations

import ctypes
import datetime
import os
import platform
import subprocess
from typing import Any

from gpu_build import ROOT, stamp
from gpu_run import Row

DRIVER = "libcuda.so.1"
# What gpubench calls the engine, beside its baseline.
OURS = "moewire"
QUERY = ("name,driver_version,memory.total,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,"
         "power.limit,temperature.gpu,mig.mode.current")  # fmt: skip


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
    found["commit"] = said_by("git", "describe", "--always", "--dirty") or str(
        stamp().get("commit", "")
    )
    found["kernels"] = "prebuilt" if stamp().get("prebuilt") else "compiled there by NVRTC"
    found["host"] = f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}"
    return {key: value for key, value in found.items() if value}


def table(title: str, found: dict[str, str], rows: list[Row]) -> str:
    """The results as Markdown."""
    lines = [f"# {title}", "", "| condition | |", "|---|---|"]
    lines += [f"| {key} | {value} |" for key, value in found.items()]
    lines += ["", "| what | outcome | seconds | tests |", "|---|---|---|---|"]
    for row in rows:
        tests = ", ".join(f"{n} {word.lower()}" for word, n in row.tests.items() if n)
        lines.append(f"| {row.name} | {row.outcome} | {row.seconds} | {tests} |")
    lines += [f"\n{row.name}: {row.said}" for row in rows if row.outcome == "not there"]
    all_results = [row.result for row in rows]
    results = [result for result in all_results if not result.get("loads")]
    for made, key in ((probe_table, "lanes_on"),
                      (bench_table, "dispatch_us"), (ratio_table, "dispatch_us"),
                      (parts_table, "rank_0_parts_us"),
                      (calls_table, "calls_us")):  # fmt: skip
        if found := [result for result in results if result.get(key)]:
            lines += ["", *made(sorted(found, key=by_shape))]
    if len(results) < len(all_results):
        lines += ["", *variant_table(all_results)]
    if any("peer_us" in result for result in results):
        lines += ["", *peer_table(results)]
    return "\n".join(lines) + "\n"


def by_shape(result: dict[str, Any]) -> tuple[Any, ...]:
    """Large ones first, and a baseline behind what is compared with it."""
    return (-result.get("tokens_per_rank", 0), result.get("fp8", False), result["what"] != OURS)


def markdown(head: list[str], body: list[list[Any]]) -> list[str]:
    lines = [head, ["---"] * len(head), *body]
    return ["| " + " | ".join(map(str, cells)) + " |" for cells in lines]


def shape(result: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(result[key] for key in ("ranks", "tokens_per_rank", "hidden", "topk", "fp8"))


def ratio_table(results: list[dict[str, Any]]) -> list[str]:
    """Ours beside the baseline of the same shape, and beside both goals."""
    bases = {shape(r): r for r in results if r["what"] != OURS}
    body = [ratios(r, bases.get(shape(r)), phase) for r in results if r["what"] == OURS
            for phase in ("dispatch", "combine")]  # fmt: skip
    head = ["T", "rows", "phase", "baseline's time / ours", "its bytes / floor", "goal >= 3x",
            "of the floor", "goal >= 80 %", "GB/s",
            "launches counted"]  # fmt: skip
    note = (
        "The baseline is our own writing of four copies per row. Its bytes are all that it loads"
        " and stores, also where a cache has them: a ratio of times above that of bytes is not due"
        " to copies. The floor is the plain copy's time for the bytes that must be touched."
        " GB/s are those bytes in the time that was measured."
    )
    return [*markdown(head, body), "", note]


def bytes_ratio(result: dict[str, Any], phase: str) -> float:
    """Bytes that the four copies load and store, to those of the floor.

    A dispatch loads x, stores it staged, and loads and stores it twice for each of K experts; a
    combine loads outputs, stores and loads them where they are added up, and stores the sum.
    """
    k = float(result["topk"])
    if phase == "combine":
        return (3 * k + 1) / (k + 1)
    row = 0.5 * (1 + 1 / 32) if result["fp8"] else 1.0  # in rows of x; a scale of 4 per 128
    return (1 + row * (1 + 4 * k)) / (1 + row * k)


def ratios(ours: dict[str, Any], base: dict[str, Any] | None, phase: str) -> list[Any]:
    us, share = ours[f"{phase}_us"], ours[f"{phase}_of_floor"]
    times = base[f"{phase}_us"] / us if base and us else None
    speed = share * ours["copy_gb_per_s"]
    return [ours["tokens_per_rank"], "fp8" if ours["fp8"] else "bf16", phase,
            "not measured" if times is None else f"{times:.2f}",
            f"{bytes_ratio(ours, phase):.2f}", reached(times, 3),
            f"{share:.2f}", reached(share, 0.8), f"{speed:.0f}",
            "yes" if ours.get("launches_counted") else "no"]  # fmt: skip


# As gpubench's -loads counts; 0 is what the shape chooses.
LOADS = ("by shape", "narrow", "usual", "deep")


def variant_table(results: list[dict[str, Any]]) -> list[str]:
    """What other numbers of loads under way would do, beside what the shape chooses."""
    ours = [r for r in results if r.get("dispatch_us") and r["what"] == OURS]
    forced = {shape(r) for r in ours if r.get("loads")}
    body = [[*shape(r)[:4], "fp8" if r["fp8"] else "bf16", LOADS[r.get("loads", 0)],
             f"{r['dispatch_us']:.1f}", f"{r['combine_us']:.1f}"]
            for r in sorted(ours, key=lambda r: (*by_shape(r), r.get("loads", 0)))
            if shape(r) in forced]  # fmt: skip
    head = ["R", "T", "H", "K", "rows", "loads under way", "dispatch us", "combine us"]
    return markdown(head, body)


def peer_table(results: list[dict[str, Any]]) -> list[str]:
    """A peer's own kernels, and ours and the baseline's of the same shape."""
    body = []
    for found in (result for result in results if "peer_us" in result):
        same = [r for r in results if r.get("dispatch_us") and shape(r) == shape(found)]
        for r in [found, *same]:
            us = r.get("peer_us") or {phase: r[f"{phase}_us"] for phase in ("dispatch", "combine")}
            body.append([r["what"], *shape(r)[:4], r["experts"], "fp8" if r["fp8"] else "bf16",
                         f"{us['dispatch']:.1f}", f"{us['combine']:.1f}",
                         "yes" if r.get("launches_counted") else "no"])  # fmt: skip
    head = [
        "what",
        "R",
        "T",
        "H",
        "K",
        "E",
        "rows",
        "dispatch us",
        "combine us",
        "launches counted",
    ]
    note = (
        "DeepEP has one rank per device, so on one GPU a group of one: nothing goes over a link,"
        " and the rows of others here are of one rank, too."
    )
    return [*markdown(head, body), "", note]


def reached(value: float | None, goal: float) -> str:
    return "not measured" if value is None else "reached" if value >= goal else "missed"


def parts_table(results: list[dict[str, Any]]) -> list[str]:
    """Of what the latency of one operation consists: most where it is bound by launches."""
    names = ["send", "receive", "publish", "reduce"]
    body = [[r["tokens_per_rank"], "fp8" if r["fp8"] else "bf16",
             *(f"{r['rank_0_parts_us'].get(name, 0):.1f}" for name in names),
             f"{r['host_us_per_launch']:.2f}"] for r in results]  # fmt: skip
    head = ["T", "rows", *(f"{name} us" for name in names), "host us per launch"]
    note = "Parts of one operation of rank 0, launched one by one beside the other ranks'; best."
    return [*markdown(head, body), "", note]


def probe_table(results: list[dict[str, Any]]) -> list[str]:
    """What the device answers where the engine takes something for granted."""
    body = [[f"{r['old_values']} of {r['values']}",
             f"{r['old_unordered_values']} of {r['unordered_values']}", r["late"],
             f"{r['lanes_on']} of {r['lanes']}",
             f"{r['clock_step_ns_min']} to {r['clock_step_ns_max']}"] for r in results]  # fmt: skip
    head = ["old values", "without order", "waits without an end", "threads of a warp that go on",
            "steps of globaltimer, ns"]  # fmt: skip
    note = (
        "Words that a block reads behind an acquire, or as the last block of a launch: none may be"
        " old. Without order some may; where none is, old ones could not be seen here."
    )
    return [*markdown(head, body), "", note]


def calls_table(results: list[dict[str, Any]]) -> list[str]:
    """What calls cost the thread that makes them."""
    body = [[r["what"], r["on"], call, us] for r in results for call, us in r["calls_us"].items()]
    return markdown(["what", "on", "call", "us"], body)


def bench_table(results: list[dict[str, Any]]) -> list[str]:
    """Logical ranks on one device share its memory: this says nothing of links between GPUs."""
    head = ["what", "R", "T", "H", "K", "E", "rows", "slots", "copy GB/s", "dispatch us",
            "of floor", "combine us", "of floor", "Go allocations", "code"]  # fmt: skip
    body = [[r["what"], r["ranks"], r["tokens_per_rank"], r["hidden"], r["topk"], r["experts"],
             "fp8" if r["fp8"] else "bf16", r["slots"], f"{r['copy_gb_per_s']:.0f}",
             f"{r['dispatch_us']:.1f}", f"{r['dispatch_of_floor']:.2f}", f"{r['combine_us']:.1f}",
             f"{r['combine_of_floor']:.2f}", f"{r['go_allocations_per_op']:.2f}",
             r["code"]] for r in results]  # fmt: skip
    notes = (
        "R logical ranks on one GPU, so bound by its memory. Time is per operation of all ranks,"
        " each phase of all before the next, the best of several runs; all was launched before the"
        " device began, so that no launch is in it. The floor is the time in which a plain copy of"
        " the same run moves the bytes that the format must touch; 1.00 is its speed. Below"
        " T = 1024 caches hold much of it, and the floor is not valid. The baseline is our own"
        " writing of the four copies that others make (core/device/cuda/gpubench/baseline), no code"
        " of theirs; it is launched in the same way, and held to our floor."
    )
    return [*markdown(head, body), "", notes]
