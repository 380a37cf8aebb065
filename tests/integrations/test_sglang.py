"""SGLang's own dispatchers, from its wheel, with Moewire behind them, on processes of this machine.

Experts and the rest of SGLang need a GPU; the dispatchers run on tensors in ordinary memory.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import engine_venvs
import pytest
import sglang_reference as reference
from engine_server import EngineServer

ROOT = Path(__file__).resolve().parents[2]
ON = {"MOEWIRE_SGLANG": "1"}
BACKENDS = ("mooncake", "deepep")
NUM_LAYERS = 12  # as in sglang_jobs

pytestmark = [pytest.mark.multirank, pytest.mark.slow]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    """SGLang's environment, in which Moewire is installed by its declared entry points."""
    python = engine_venvs.python_of("sglang", own_torch=False)
    installed: Path = tmp_path_factory.mktemp("installed")
    declare(installed)
    one = EngineServer(python, "sglang_preload", ROOT / "python", installed)
    yield one
    one.close()


def declare(folder: Path) -> None:
    """What an installation leaves there for others to find its entry points."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    info = folder / "moewire-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: moewire\nVersion: 0\n")
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in groups.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))


@pytest.mark.parametrize("hook", [True, False], ids=["hook", "event"])
@pytest.mark.parametrize(
    ("backend", "dtype"), [("mooncake", "fp8"), ("deepep", "fp8"), ("deepep", "bf16")]
)
@pytest.mark.parametrize("size", [2, 4])
def test_rows_and_results_to_the_bit(
    server: EngineServer, size: int, backend: str, dtype: str, hook: bool
) -> None:
    answers = server.run(size, "sglang_jobs.layers", backend, dtype, hook, **ON)
    for answer in answers:
        assert answer["wrong"] == []
        assert answer["operations"] == [NUM_LAYERS, NUM_LAYERS]
        assert 0 in answer["lengths"] and max(answer["lengths"]) > reference.MAX_TOKENS // 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [2, 4])
def test_every_order_of_two_batch_overlap(server: EngineServer, size: int, backend: str) -> None:
    for answer in server.run(size, "sglang_jobs.schedules", backend, **ON):
        assert answer["wrong"] == []
        assert answer["orders"] == 70
        assert answer["operations"] == [answer["passes"]] * 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("job", ["one_layer", "plugin_before_dispatcher"])
def test_whichever_is_imported_first(server: EngineServer, backend: str, job: str) -> None:
    for answer in server.run(2, f"sglang_jobs.{job}", backend, **ON):
        assert answer == {"right": True, "operations": [1, 1]}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_corrupted_combine_is_noticed(server: EngineServer, backend: str) -> None:
    environment = {**ON, "MOEWIRE_TEST_CORRUPT": "combine"}
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


def test_only_the_leaf_of_mooncake_is_replaced(server: EngineServer, tmp_path: Path) -> None:
    ours = "moewire.integrations._sglang_buffer"
    (answer,) = server.run(1, "sglang_jobs.modules", **ON)
    assert answer == {"buffer": ours, "engine": "ModuleNotFoundError"}
    package = tmp_path / "mooncake"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "engine.py").write_text("TransferEngine = 'the real one'\n")
    (package / "mooncake_ep_buffer.py").write_text("Buffer = 'the real one'\n")
    (answer,) = server.run(1, "sglang_jobs.modules_with", str(tmp_path), **ON)
    assert answer == {"buffer": ours, "engine": "the real one"}


