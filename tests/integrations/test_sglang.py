"""SGLang's own dispatchers, from its wheel, with Moewire behind them, on processes of this machine.

Experts and the rest of SGLang need a GPU; the dispatchers run on tensors in ordinary memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import engine_venvs
import host_jobs
import pytest
import sglang_reference as reference
from engine_server import EngineServer

ROOT = Path(__file__).resolve().parents[2]
ON = {"MOEWIRE_SGLANG": "1"}
BACKENDS = ("mooncake", "deepep")
NUM_LAYERS, NUM_LAYERS_ON_CUDA = 12, 4  # as in sglang_jobs and sglang_cuda_jobs

pytestmark = [pytest.mark.multirank, pytest.mark.slow]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    """SGLang's environment, in which Moewire is installed by its declared entry points."""
    python = engine_venvs.python_of("sglang", own_torch=False)
    installed: Path = tmp_path_factory.mktemp("installed")
    engine_venvs.declare(installed)
    paths = [ROOT / "python", installed, ROOT / "tests" / "python"]
    one = EngineServer(python, "sglang_preload", *paths)
    yield one
    one.close()


@pytest.mark.parametrize("hook", [True, False], ids=["hook", "event"])
@pytest.mark.parametrize(
    ("backend", "dtype"), [("mooncake", "fp8"), ("deepep", "fp8"), ("deepep", "bf16")]
)
@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.long)])
def test_rows_and_results_to_the_bit(
    server: EngineServer, size: int, backend: str, dtype: str, hook: bool
) -> None:
    answers = server.run(size, "sglang_jobs.layers", backend, dtype, hook, **ON)
    for answer in answers:
        assert answer["wrong"] == []
        assert answer["operations"] == [NUM_LAYERS, NUM_LAYERS]
        assert 0 in answer["lengths"] and max(answer["lengths"]) > reference.MAX_TOKENS // 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.long)])
def test_every_order_of_two_batch_overlap(server: EngineServer, size: int, backend: str) -> None:
    for answer in server.run(size, "sglang_jobs.schedules", backend, **ON):
        assert answer["wrong"] == []
        assert answer["orders"] == 70 + 13 + 40  # of one layer, all; leads over three; drawn
        assert answer["operations"] == [answer["passes"]] * 2


@pytest.mark.parametrize(
    ("backend", "dtype", "hook"),
    [
        pytest.param("mooncake", "fp8", True, id="mooncake-fp8-hook"),
        pytest.param("mooncake", "fp8", False, id="mooncake-fp8-event", marks=pytest.mark.long),
        pytest.param("deepep", "fp8", True, id="deepep-fp8-hook", marks=pytest.mark.long),
        pytest.param("deepep", "fp8", False, id="deepep-fp8-event"),
        pytest.param("deepep", "bf16", True, id="deepep-bf16-hook"),
        pytest.param("deepep", "bf16", False, id="deepep-bf16-event", marks=pytest.mark.long),
    ],
)
def test_rows_and_results_on_cuda(
    server: EngineServer, cuda_driver: str, backend: str, dtype: str, hook: bool
) -> None:
    """On the emulated device, which is torch's current one."""
    for answer in server.run(2, "sglang_cuda_jobs.layers", cuda_driver, backend, dtype, hook, **ON):
        assert answer["wrong"] == []
        assert answer["operations"] == [NUM_LAYERS_ON_CUDA] * 2


@pytest.mark.parametrize(
    ("backend", "on_cuda"), [("mooncake", True), ("deepep", False)], ids=["mooncake", "deepep"]
)
def test_rows_and_results_between_hosts(
    server: EngineServer, cuda_driver: str, backend: str, on_cuda: bool
) -> None:
    job = ["sglang_cuda_jobs.layers", cuda_driver] if on_cuda else ["sglang_jobs.layers"]
    arguments = *job, backend, "fp8", True
    for answer in server.run(2, "host_jobs.remote", *arguments, **host_jobs.VARIABLES, **ON):
        assert answer["wrong"] == []
        assert answer["operations"] == [NUM_LAYERS_ON_CUDA if on_cuda else NUM_LAYERS] * 2


@pytest.mark.parametrize("backend", ["deepep", pytest.param("mooncake", marks=pytest.mark.long)])
def test_two_batch_overlap_on_cuda(server: EngineServer, cuda_driver: str, backend: str) -> None:
    for answer in server.run(2, "sglang_cuda_jobs.schedules", cuda_driver, backend, **ON):
        assert answer["wrong"] == [] and answer["orders"] == 13
        assert answer["operations"] == [answer["passes"]] * 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("job", ["one_layer", "plugin_before_dispatcher"])
def test_whichever_is_imported_first(server: EngineServer, backend: str, job: str) -> None:
    for answer in server.run(2, f"sglang_jobs.{job}", backend, **ON):
        assert answer == {"right": True, "operations": [1, 1]}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_corrupted_combine_is_noticed(
    server: EngineServer, backend: str, wrong_library: str
) -> None:
    environment = {**ON, "MOEWIRE_LIBRARY": wrong_library, "MOEWIRE_TEST_CORRUPT": "1"}
    for answer in server.run(2, "sglang_jobs.one_layer", backend, **environment):
        assert answer == {"right": False, "operations": [1, 1]}


@pytest.mark.parametrize(
    "environment",
    [{}, {"MOEWIRE_SGLANG": "0"}, {**ON, "SGLANG_PLUGINS": "other"}],
    ids=["unset", "off", "not on SGLang's list"],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_is_touched_unasked(
    server: EngineServer, backend: str, environment: dict[str, str]
) -> None:
    words = {"mooncake": "Mooncake EP is not installed", "deepep": "DeepEP is not available"}
    for said in server.run(2, "sglang_jobs.refused", backend, **environment):
        assert words[backend] in said


@pytest.mark.parametrize(
    ("asked", "backend"), [("deepep", "mooncake"), ("mooncake", "deepep"), ("nonsense", "deepep")]
)
def test_only_what_was_asked_for(server: EngineServer, asked: str, backend: str) -> None:
    for said in server.run(1, "sglang_jobs.refused", backend, MOEWIRE_SGLANG=asked):
        assert "not installed" in said or "not available" in said


def test_sglangs_list_of_plug_ins_is_a_switch_too(server: EngineServer) -> None:
    answers = server.run(2, "sglang_jobs.one_layer", "mooncake", SGLANG_PLUGINS="moewire")
    assert all(answer["right"] for answer in answers)


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
@pytest.mark.parametrize("mode", ["normal", "auto"])
def test_prompts_in_the_normal_mode(server: EngineServer, mode: str, dtype: str) -> None:
    """SGLang's ``--deepep-mode``: some ranks without tokens; "auto": both modes in turn."""
    job = "sglang_jobs.prompts_and_tokens", mode, dtype, NUM_LAYERS_ON_CUDA
    for answer in server.run(2, *job, **ON):
        assert answer["wrong"] == []
        assert all(count % 128 == 0 for counts in answer["counts"] for count in counts)


@pytest.mark.parametrize("fp8", [False, True], ids=["bf16", "fp8"])
@pytest.mark.parametrize("step", ["prefill", "compact", "decode"])
def test_the_second_version(server: EngineServer, step: str, fp8: bool) -> None:
    """``--moe-a2a-backend deepep_v2``: rows by expert or by token, and the worst case."""
    for answer in server.run(2, "sglang_v2_jobs.layers", step, fp8, NUM_LAYERS_ON_CUDA, **ON):
        assert answer["wrong"] == [] and answer["buffer"] == "moewire.deep_ep._elastic"
        assert max(answer["lengths"]) > 0
        assert min(answer["lengths"]) == 0


MOONCAKE_OURS, DEEP_EP_OURS = "moewire.integrations._sglang_buffer", "moewire.deep_ep._buffer"


@pytest.fixture
def libraries(tmp_path: Path) -> Path:
    """A folder with a Mooncake and a DeepEP that are installed."""
    package = tmp_path / "mooncake"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "engine.py").write_text("TransferEngine = 'the real one'\n")
    (package / "mooncake_ep_buffer.py").write_text("Buffer = 'the real one'\n")
    (tmp_path / "deep_ep.py").write_text("Buffer = Config = 'the real one'\n")
    return tmp_path


def test_what_is_missing_is_filled_in(server: EngineServer) -> None:
    (answer,) = server.run(1, "sglang_jobs.modules", **ON)
    assert answer == {
        "buffer": MOONCAKE_OURS,
        "deep_ep": DEEP_EP_OURS,
        "dispatcher": DEEP_EP_OURS,
        "engine": "ModuleNotFoundError",
    }


def test_of_mooncake_only_the_leaf_is_replaced(server: EngineServer, libraries: Path) -> None:
    (answer,) = server.run(
        1, "sglang_jobs.modules", str(libraries), MOEWIRE_SGLANG="mooncake,deepep"
    )
    assert answer == {
        "buffer": MOONCAKE_OURS,
        "deep_ep": DEEP_EP_OURS,
        "dispatcher": DEEP_EP_OURS,
        "engine": "the real one",
    }


def test_an_installed_deep_ep_stays_unless_named(server: EngineServer, libraries: Path) -> None:
    job = "sglang_jobs.modules_with_early_deep_ep"
    (answer,) = server.run(1, job, str(libraries), **ON)
    assert answer["buffer"] == MOONCAKE_OURS
    assert answer["deep_ep"] == answer["dispatcher"] == "the real one"


def test_another_version_is_refused(server: EngineServer, tmp_path: Path) -> None:
    info = tmp_path / "sglang-0.6.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.6.0\n")
    arguments = "sglang_jobs.untested_version", str(tmp_path), "mooncake"
    (said,) = server.run(1, *arguments, **ON)
    assert "Mooncake EP is not installed" in said
    (said,) = server.run(1, *arguments, **ON, MOEWIRE_UNTESTED_VERSIONS="1")
    assert said == "nothing"


def test_log(server: EngineServer) -> None:
    (lines,) = server.run(1, "sglang_jobs.log_lines", "INFO", **ON)
    assert lines[-1] == (
        "WARNING SGLang 0.5.23 runs with moewire: --moe-a2a-backend mooncake or deepep or "
        "deepep_v2 (on CUDA only --deepep-mode low_latency was tried) (shown on the CPU and on an "
        "emulated CUDA device; never run on a GPU)"
    )
    (lines,) = server.run(1, "sglang_jobs.log_lines", "INFO")
    assert len(lines) == 1 and lines[0].startswith("INFO SGLang runs without moewire: off")
    (lines,) = server.run(1, "sglang_jobs.log_lines", "INFO", MOEWIRE_SGLANG="nonsense")
    assert len(lines) == 1 and lines[0].startswith("ERROR") and "allowed: 0, 1" in lines[0]


def test_a_failure_touches_nothing_and_is_logged(server: EngineServer) -> None:
    (answer,) = server.run(1, "sglang_jobs.broken", **ON)
    assert answer["touched"] == []
    (line,) = answer["lines"]
    assert line.startswith("ERROR SGLang runs without moewire") and "use_deepep" in line


def test_example(server: EngineServer) -> None:
    path = str(ROOT / "examples" / "sglang_check.py")
    (text,) = server.run(1, "sglang_jobs.example", path, **ON)
    assert "mooncake: Moewire" in text and "deepep: Moewire" in text
    assert "deepep_v2: Moewire" in text
    (text,) = server.run(1, "sglang_jobs.example", path)
    assert "mooncake: not installed" in text and "deepep: not installed" in text
    assert "deepep_v2: not installed" in text


def test_doctor(server: EngineServer) -> None:
    def engine(**environment: str) -> dict[str, Any]:
        text = server.program("-m", "moewire", "doctor", "--json", **environment)
        found: dict[str, Any] = json.loads(text)["engines"]["SGLang"]
        return found

    used = engine(**ON)
    assert used["version"] == used["tested_with"] == "0.5.23"
    assert used["plug_in"] == "would be used" and "never run on a GPU" in used["limits"]
    served = "served on the CPU; not tried on CUDA"
    assert used["modes"] == {
        "--moe-a2a-backend mooncake": "served on the CPU and CUDA",
        "--moe-a2a-backend deepep --deepep-mode low_latency": "served on the CPU and CUDA",
        "--moe-a2a-backend deepep --deepep-mode normal": served,
        "--moe-a2a-backend deepep --deepep-mode auto": served,
        "--moe-a2a-backend deepep_v2": served,
    }
    assert engine()["plug_in"] == "not used: off: MOEWIRE_SGLANG is not set"
    assert set(engine()["modes"].values()) == {"not served: the plug-in is not used"}


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_killed_rank_shows_and_comes_back(server: EngineServer, deaths: int) -> None:
    answers = server.run(3, "sglang_elastic.killed_and_back", deaths, group=False, **ON)
    _check_lives(answers, deaths, operations_alone=0)


def test_a_killed_rank_comes_back_on_cuda(server: EngineServer, cuda_driver: str) -> None:
    job = "sglang_cuda_jobs.killed_and_back", cuda_driver, 1
    answers = server.run(3, *job, group=False, **ON)
    _check_lives(answers, 1, operations_alone=2)  # counted in the process, not in its buffer


def _check_lives(answers: list[Any], deaths: int, operations_alone: int) -> None:
    every, two, alone = [1, 1, 1, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 0, 0]
    right = [True, True]
    for answer in answers[:2]:
        cycle = [
            {"right": right, "active": two, "noticed": True},
            {"right": right, "active": every},
        ]
        assert answer["seen"] == [{"right": right, "active": every}, *(cycle * deaths)]
        assert answer["operations"] == [2 + 4 * deaths] * 2
    joined = [{"right": right, "active": alone}, {"right": right, "active": every}]
    # Since it joined.
    assert answers[2] == {"seen": joined, "operations": [2 + operations_alone] * 2}
