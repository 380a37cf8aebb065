"""The team of processes and the seed; makes ``harness`` and tests/bench importable here and in
children."""

from __future__ import annotations

import importlib.util
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "bench")]
if importlib.util.find_spec("moewire") is None:
    sys.path.insert(0, str(HERE.parents[1] / "python"))

from harness.team import Team  # noqa: E402

if TYPE_CHECKING:
    from harness.block_server import Served
    from harness.carry_over import Ranks
    from harness.jobs_cuda import Place
    from harness.mooncake import Store

SEED = int(os.environ.get("MOEWIRE_TEST_SEED") or random.SystemRandom().randrange(1 << 31))


def pytest_report_header() -> str:
    return f"moewire: MOEWIRE_TEST_SEED={SEED}"


@pytest.fixture(scope="session")
def seed() -> int:
    return SEED


@pytest.fixture(scope="session")
def team() -> Iterator[Team]:
    one = Team(SEED)
    yield one
    one.close()


@pytest.fixture
def wrong_team(wrong_library: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Team]:
    """A team whose combines are wrong if a job wants it."""
    monkeypatch.setenv("MOEWIRE_LIBRARY", wrong_library)
    one = Team(SEED)
    yield one
    one.close()


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.all)])
def ranks(team: Team, request: pytest.FixtureRequest) -> Ranks:
    """The team on either kind of device: the emulated one, or one of this machine."""
    from harness import cuda_device, emulator
    from harness.carry_over import Ranks

    if request.param == "cpu":
        return Ranks(team, None)
    return Ranks(team, "" if cuda_device.wanted() else str(emulator.driver()))


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """For programs started by a test: they import what this process imports."""
    import moewire

    paths = [str(Path(moewire.__file__).parents[1]), str(HERE)]
    if "PYTHONPATH" in os.environ:
        paths.append(os.environ["PYTHONPATH"])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Place]:
    """The CUDA device behind this process's buffers."""
    from harness.cuda_place import behind_buffers

    with behind_buffers(monkeypatch, tmp_path) as one:
        yield one


@pytest.fixture(scope="module")
def block_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of the block store, in memory."""
    from harness.block_server import Served

    with Served(tmp_path_factory.mktemp("memory"), "--capacity", "64MiB") as server:
        yield server


@pytest.fixture
def mooncake_namespace(
    block_server: Served, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """What a store of Mooncake's finds in its environment: a namespace of the test's own."""
    from moewire.compat._mooncake_store import _codes

    _codes.warn_once.cache_clear()
    monkeypatch.delenv("MOEWIRE_STORE_SERVERS", raising=False)
    monkeypatch.setenv("MOEWIRE_KEY_FILE", str(block_server.key))
    monkeypatch.setenv("MOEWIRE_STORE_NAMESPACE", request.node.name)
    monkeypatch.setenv("MOEWIRE_STORE_TIMEOUT_US", "5000000")


@pytest.fixture
def mooncake(block_server: Served, mooncake_namespace: None) -> Iterator[Store]:
    """A store of Mooncake's that is set up."""
    from harness.mooncake import opened

    one = opened(block_server.address)
    yield one
    assert one.close() == 0
