"""Training programs that use DeepEP, from their published packages, with Moewire behind its name.

Their code runs unchanged on CPU tensors. Results and gradients are equal to those of one process.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import deep_ep_world as worlds
import engine_venvs
import host_jobs
import pytest
from engine_server import EngineServer

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.multirank, pytest.mark.slow]


@pytest.fixture(scope="module")
def server() -> Iterator[EngineServer]:
    """Megatron's and NeMo's environment."""
    python = engine_venvs.python_of("deep_ep", own_torch=False)
    one = EngineServer(python, "deep_ep_preload", ROOT / "python", ROOT / "tests" / "python")
    yield one
    one.close()


@pytest.mark.parametrize("async_finish", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("size", [2, 3], ids="R={}".format)
def test_megatrons_functions(server: EngineServer, size: int, async_finish: bool) -> None:
    for answer in server.run(size, "deep_ep_jobs.megatron", async_finish):
        assert answer == {"wrong": [], "buffers": 1, "ours": True}


def test_megatrons_functions_between_hosts(server: EngineServer) -> None:
    job = "deep_ep_jobs.megatron", True
    for answer in server.run(2, "host_jobs.remote", *job, **host_jobs.VARIABLES):
        assert answer == {"wrong": [], "buffers": 1, "ours": True}


@pytest.mark.parametrize(
    ("backend", "buffer", "module"),
    [
        ("deepep", "Buffer", "moewire.deep_ep._buffer"),
        ("hybridep", "HybridEPBuffer", "moewire.deep_ep._hybrid"),
    ],
)
@pytest.mark.parametrize("dropped", [False, True], ids=["all tokens", "dropped tokens"])
def test_megatrons_dispatcher(
    server: EngineServer, dropped: bool, backend: str, buffer: str, module: str
) -> None:
    for answer in server.run(2, "deep_ep_jobs.flex_dispatcher", backend, dropped):
        assert answer == {"wrong": [], "buffer": buffer, "module": module}


@pytest.mark.parametrize("backend", ["deepep", pytest.param("hybridep", marks=pytest.mark.long)])
def test_megatrons_example(server: EngineServer, backend: str) -> None:
    launch = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"
    program = str(ROOT / "examples" / "megatron_moe.py")
    printed = server.program(*launch, program, backend, TORCHDYNAMO_DISABLE="1")
    assert printed.count("of the greatest value") == 2 * 4


@pytest.mark.parametrize("async_finish", [False, True], ids=["sync", "async"])
def test_nemos_functions(server: EngineServer, async_finish: bool) -> None:
    """A replay of a checkpoint makes no routing: it dispatches by the handles of the forward."""
    replay = {"wrong": [], "misses": 0}
    replay |= dict.fromkeys(("recorded", "replayed", "made"), worlds.LAYERS)
    for answer in server.run(3, "deep_ep_jobs.nemo", async_finish):
        assert answer == {
            "wrong": [],
            "buffers": 1,
            "ours": True,
            "replay": replay,
            "freed": True,
            "again": [],
        }


@pytest.mark.parametrize("inference", [False, True], ids=["training", "inference"])
def test_titans_functions(server: EngineServer, inference: bool) -> None:
    for answer in server.run(3, "deep_ep_jobs.titan", inference):
        assert answer == {"wrong": [], "ours": True, "handles": 0}


def test_hybridep_between_hosts(server: EngineServer) -> None:
    job = "deep_ep_hybrid_jobs.nemo", 16
    for answer in server.run(2, "host_jobs.remote", *job, **host_jobs.VARIABLES):
        assert answer == {"wrong": [], "replayed": worlds.LAYERS, "misses": 0, "ours": True}


@pytest.mark.parametrize("pad", [None, 16])
def test_nemos_functions_over_hybridep(server: EngineServer, pad: int | None) -> None:
    for answer in server.run(3, "deep_ep_hybrid_jobs.nemo", pad):
        assert answer == {"wrong": [], "replayed": worlds.LAYERS, "misses": 0, "ours": True}


@pytest.mark.parametrize(("size", "room"), [(3, None), (2, 4.0)], ids=["exact", "with room"])
def test_titans_functions_over_hybridep(
    server: EngineServer, size: int, room: float | None
) -> None:
    for answer in server.run(size, "deep_ep_hybrid_jobs.titan", room):
        assert answer == {"wrong": [], "ours": True}
