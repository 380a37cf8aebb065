"""``moewire bench`` and ``tests/bench``: their floor, their peers, what they print and write."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import documents
from documents import overlap, shapes
from documents.peers import venvs
from harness import jobs_bench
from harness.required import is_required, lacking
from harness.team import Team
from moewire.bench import cases, chart, compiler, idle, report, tables
from moewire.bench import options as bench_options
from moewire.bench.worker import Settings
from moewire.errors import InvalidArgument, MoewireError

Environment = dict[str, str]
SHAPE = ["--tokens", "16", "--hidden", "256", "--experts", "8", "--topk", "2"]
DTYPES = pytest.mark.parametrize(
    "dtype",
    [pytest.param("bf16", marks=pytest.mark.all), pytest.param("fp8", marks=pytest.mark.long)],
)
LITTLE = ["--repeat", "3", "--warmup", "1", "--idle-wait", "0"]
needs_compiler = pytest.mark.skipif(
    not is_required("cc") and not any(map(shutil.which, ("cc", "gcc", "clang"))),
    reason="no C compiler",
)


def bench(environment: Environment, *arguments: str, status: int = 0) -> str:
    command = [sys.executable, "-m", "moewire", "bench", *arguments]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == status, f"{done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr if status else done.stdout


@needs_compiler
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
@pytest.mark.parametrize("size", [1, 2, 4], ids="R={}".format)
def test_the_floor_moves_what_a_dispatch_moves(team: Team, size: int, dtype: str) -> None:
    team.run(size, jobs_bench.floor_bytes, dtype)


@needs_compiler
def test_the_floor_without_a_compiler(team: Team) -> None:
    team.run(2, jobs_bench.numpy_floor)


@DTYPES
@pytest.mark.parametrize("name", ["gloo", "openmpi", "mooncake"])
def test_a_peer_is_right(team: Team, name: str, dtype: str) -> None:
    reason = team.run(2, jobs_bench.peer, name, dtype)[0]
    if reason:
        assert name != "gloo", reason
        lacking(name, f"{name}: {reason}")


@DTYPES
def test_json(environment: Environment, tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "result.json"
    peers = ["--peers", "gloo" if dtype == "bf16" else "none"]
    text = bench(environment, *SHAPE, *LITTLE, "--dtype", dtype, *peers, "--json", str(path))
    assert "copy floor, dispatch" in text
    result = json.loads(path.read_text())
    assert result["schema"] == report.SCHEMA and result["machine"]["cpus"] > 0
    (case,) = result["cases"]
    assert (case["ranks"], case["tokens"], case["dtype"]) == (2, 16, dtype)
    assert set(case["idle"]) == {"busy", "waited_seconds", "quiet"}
    _check_steps(case["steps"], dtype == "bf16")
    assert all(cost > 0 for cost in result["overhead_us"].values())
    assert {"python_dispatch", "ctypes_dispatch"} <= set(result["overhead_us"])


def _check_steps(steps: dict[str, dict[str, float]], with_gloo: bool) -> None:
    always = {"floor_dispatch", "floor_combine", "moewire_dispatch", "moewire_combine_zero_copy"}
    assert always <= set(steps)
    assert ("gloo_combine" in steps) == with_gloo
    for name, step in steps.items():
        assert 0 <= step["min_us"] <= step["p10_us"] <= step["median_us"] <= step["p90_us"], name
    assert steps["floor_dispatch"]["ratio_to_floor"] == 1.0
    assert steps["moewire_dispatch"]["ratio_to_floor"] > 0


@pytest.mark.all
@needs_compiler
def test_pairs_without_rest_and_switches(environment: Environment, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    switches = ["--threads", "2", "--stores", "cached", "--prefetch", "1", "--spin-us", "20"]
    switches += ["--huge-pages", "advise", "--numa", "local"]
    arguments = [*SHAPE, *LITTLE, "--warm", "--peers", "gloo", *switches, "--json", str(path)]
    assert "dispatch and combine, no rest" in bench(environment, *arguments)
    result = json.loads(path.read_text())
    assert result["settings"]["tuning"]["num_threads"] == 2
    (case,) = result["cases"]
    assert {"moewire_c_dispatch", "moewire_c_combine_zero_copy"} <= set(case["steps"])
    assert list(case["warm"]) == ["floor", "moewire_c", "moewire", "gloo"]
    for pair in case["warm"].values():
        assert 0 < pair["min_us"] <= pair["median_us"] <= pair["p90_us"]
        assert pair["dispatch_us"] > 0 and pair["combine_us"] > 0
    assert "ratio_to_floor_and_four_barriers" in case["warm"]["moewire_c"]


@pytest.mark.all
def test_several_shapes_and_both_charts(environment: Environment, tmp_path: Path) -> None:
    picture = tmp_path / "chart.svg"
    shape = ["--tokens", "1,8", *SHAPE[2:]]
    arguments = [*shape, *LITTLE, "--peers", "none", "--floor", "numpy", "--plot", str(picture)]
    text = bench(environment, *arguments)
    assert "the floor is numpy's: --floor numpy was asked for" in text
    assert "dispatch, R=2 H=256 bf16" in text and "* moewire_dispatch" in text
    assert picture.read_text().startswith("<?xml")


@pytest.mark.parametrize(
    "wrong",
    [
        ["--experts", "7"],
        ["--hidden", "12"],
        ["--hidden", "136", "--dtype", "fp8"],
        ["--topk", "99"],
        ["--tokens", "0"],
        ["--dtype", "fp4"],
        ["--peers", "nccl"],
        ["--repeat", "0"],
        ["--plot", "chart.txt"],
        ["--threads", "0"],
        ["--prefetch", "65"],
        ["--spin-us", "-1"],
    ],
    ids=" ".join,
)
def test_refuses(wrong: list[str]) -> None:
    # What buffers refuse is named as they do.
    named = wrong[0].removeprefix("--").replace("-", "_").replace("threads", "num_threads")
    with pytest.raises(InvalidArgument, match=f"^{wrong[0]}|--ranks|^{named}"):
        _choose(*wrong)


def _choose(*arguments: str) -> list[cases.Case]:
    options = bench_options.parser(None).parse_args(arguments)
    bench_options.complete(options)
    return cases.chosen(options)


@pytest.mark.all
def test_a_case_that_needs_too_much_memory_is_said_so(environment: Environment) -> None:
    shape = ["--tokens", "1000000", "--hidden", "7168"]
    text = bench(environment, *shape, *LITTLE, status=1)
    assert "not measured: it needs about" in text


def test_a_case_that_failed_has_no_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """What readers of the JSON look for in cases that were measured is in no other."""
    monkeypatch.setattr(documents.bench, "_that_fit", lambda *_: (None, {"": "too little memory"}))
    options = bench_options.parser(None).parse_args(["--idle-wait", "0"])
    settings = Settings(1, 1, {}, 0, "numpy", 0, tuning={}, warm=True)
    found = documents.bench._one(shapes.TABLES["decode"][0], settings, options)
    assert found["failure"] == "too little memory"
    assert not {"floor", "peers", "steps", "warm", "counters"} & found.keys()


def test_every_table_can_be_asked_for() -> None:
    for name, table in shapes.TABLES.items():
        assert cases.checked(table) and shapes.chosen([name]) == (table, [])


def test_overlap_is_a_table_of_its_own() -> None:
    assert shapes.chosen(["overlap"]) == ([], shapes.OVERLAP)
    assert shapes.chosen(["main", "overlap"]) == (shapes.TABLES["main"], shapes.OVERLAP)
    with pytest.raises(InvalidArgument, match=r"^--tables nothing: allowed: main,"):
        shapes.chosen(["nothing"])


def test_what_tests_bench_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shape alone, or tables: all of them where none is named."""
    asked: list[Any] = []
    monkeypatch.setattr(documents.bench, "run", lambda options, *rest: asked.append(rest))
    for words in (["--ranks", "2"], ["--quick"], ["--tables", "main"], []):
        documents.main([*words, "--peers", "openmpi"])
    everything = [case for table in shapes.TABLES.values() for case in table]
    assert [rest[0] for rest in asked[1:]] == [cases.QUICK, shapes.TABLES["main"], everything]
    assert len(asked[0]) == 1 and [list(rest[1]) for rest in asked[2:]] == [[], ["overlap"]]


def test_overlap_measures(team: Team) -> None:
    """Every delay of both operations, whatever it comes to on this machine."""
    rows = overlap.summarise(*team.run(2, jobs_bench.overlapping, timeout=180))
    expected = [(kind, delay) for kind in ("dispatch", "combine") for delay in overlap.DELAYS_MS]
    # Those of the job are other delays, as many: they last.
    assert [(row["operation"], row["delay_ms"]) for row in rows] == expected
    assert all(row["overlapped_us"] > 0 and row["work_us"] > 0 for row in rows)
    text = overlap.table("a title", rows)
    assert text.count("of the repetitions") == len(rows)


def test_what_counts_as_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the longer of work and delay; the medians decide."""
    monkeypatch.setattr(overlap, "DELAYS_MS", (1.0,))
    span = {"alone": 1.5, "dispatch blocking": 2.5, "combine blocking": 2.5}

    def early(overlapped: float) -> list[overlap.Samples]:
        lengths = span | {"dispatch overlapped": overlapped, "combine overlapped": 9.0}
        return [{name: [(10.0, 10.0 + length)] * 3 for name, length in lengths.items()}]

    def dispatch(overlapped: float, late: float) -> tuple[bool, float]:
        later = [
            {f"{kind} overlapped": [(10.0 + late, 0.0)] * 3 for kind in ("dispatch", "combine")}
        ]
        row, combine = overlap.summarise(early(overlapped), later)
        assert not combine["hidden"] and combine["hidden_share"] == 0
        return row["hidden"], round(row["ratio"], 2)

    assert dispatch(1.6, late=1.0) == (True, 1.07)
    assert dispatch(1.8, late=1.0) == (False, 1.2)
    assert dispatch(1.8, late=1.7) == (True, 1.06)


def test_idle_gate_gives_up() -> None:
    found = idle.wait(0.0, look=lambda: 0.9)
    assert not found["quiet"] and "NOT quiet" in tables.idle(found)
    looks = iter([0.9, 0.5, 0.02])
    assert idle.wait(10.0, look=lambda: next(looks))["quiet"]


def _result(tokens: int, median: float) -> dict[str, Any]:
    steps = {"floor_dispatch": median, "moewire_dispatch": 2 * median, "barrier": 1.0}
    shape = {"ranks": 2, "hidden": 64, "dtype": "bf16", "tokens": tokens}
    return {**shape, "steps": {name: {"median_us": value} for name, value in steps.items()}}


def test_chart_of_text() -> None:
    (panel,) = chart.panels([_result(32, 90.0), _result(1, 10.0), _result(8, 30.0)])
    assert panel.lines["floor_dispatch"] == [(1, 10.0), (8, 30.0), (32, 90.0)]
    text = chart.text(panel)
    assert text.splitlines()[1] == "dispatch, R=2 H=64 bf16"
    assert "180 us |" in text and "10 us |" in text
    assert text.count("*") == 4 and text.count("o ") >= 1  # three points and the legend


def test_nothing_to_draw() -> None:
    assert chart.panels([_result(8, 1.0)]) == []
    both = [{**_result(t, 9.0), "warm": {"floor": {"median_us": 3.0}}} for t in (1, 8)]
    assert [panel.title[:5] for panel in chart.panels(both)] == ["dispa", "pairs"]
    with pytest.raises(MoewireError, match="nothing to draw"):
        chart.need_lines(_choose("--ranks", "2,4"))
    chart.need_lines(_choose("--tokens", "1,8"))


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(compiler.CompileError, match="no C compiler"):
        compiler.system_compiler()


@needs_compiler
def test_a_peer_is_installed_once_per_interpreter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A peer sees the packages of the interpreter that installed it, which another may not have."""
    made: list[Path] = []
    monkeypatch.setattr(venvs, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(
        venvs, "_install", lambda root, _: (made.append(root), root.mkdir(parents=True))
    )
    roots = [venvs.installed("peer", "1") for _ in range(2)]
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "another"))
    roots.append(venvs.installed("peer", "1"))
    assert made == roots[1:]
    assert len(set(roots)) == 2


def test_native_code_has_no_warnings(tmp_path: Path) -> None:
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    ours, theirs = compiler.SOURCES, documents.SOURCES
    for source in (ours / "floor.c", ours / "calls.c", theirs / "ibverbs.c", theirs / "wire.c"):
        target = str(tmp_path / f"{source.stem}.so")
        command = [*compiler.system_compiler(), *flags, f"-I{ours}", str(source), "-o", target]
        subprocess.run(command, check=True, timeout=60)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--ranks x", "argument --ranks: 'x' given; allowed: whole numbers"),
        ("--ranks ,", "argument --ranks: ',' given; allowed: at least one"),
        ("--timeout nan", "argument --timeout: 'nan' given; allowed: seconds"),
        ("--idle-wait -1", "argument --idle-wait: '-1' given; allowed: seconds"),
        ("hosts --links 1e9", "argument --links: '1e9' given; allowed: whole numbers"),
        ("hosts --sizes 1K,2Z", "argument --sizes: '1K,2Z' given; allowed: bytes"),
        ("hosts --timeout inf", "argument --timeout: 'inf' given; allowed: seconds"),
    ],
)
def test_arguments_that_cannot_be_read(
    arguments: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        documents.main(arguments.split())
    assert says in capsys.readouterr().err
