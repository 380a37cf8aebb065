"""vLLM's own tests of its tiers, as published: with ours and a real store, and with its own tier.

The latter say, where the former fail, whether the tests hold in this environment at all.
"""

from __future__ import annotations

from pathlib import Path

import engine_venvs
import published_tests
import pytest

from harness.block_server import Served

HERE = Path(__file__).resolve().parent
TIERING = "tests/v1/kv_offload/tiering"
FILES = ("fs_tier", "async_lookup", "factory", "backpressure", "tiering_offloading", "metrics")
NUM_TESTS = 186
NUM_ON_OURS = 31

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module")
def python() -> Path:
    """vLLM's interpreter."""
    return engine_venvs.python_of("vllm", own_torch=True)


def test_vllms_tiers(python: Path, tmp_path: Path) -> None:
    """Some need an extension that the wheel may lack; they are skipped without it."""
    names = [f"{TIERING}/test_{name}.py" for name in FILES]
    ended = published_tests.run(python, tmp_path, *names, VLLM_PLUGINS="")
    assert ended["passed"] + ended.get("skipped", 0) == NUM_TESTS
    assert ended.get("skipped", 0) <= 11


def test_our_tier_in_place_of_the_one_in_files(python: Path, tmp_path: Path) -> None:
    packages = [HERE, HERE.parents[1] / "python"]
    with Served(tmp_path, "--capacity", "256MiB") as server:
        ended = published_tests.run(
            python,
            tmp_path,
            "-p",
            "vllm_store_as_files",
            f"{TIERING}/test_fs_tier.py",
            PYTHONPATH=":".join(map(str, packages)),
            MOEWIRE_STORE_SERVERS=server.address,
            MOEWIRE_KEY_FILE=str(server.key),
        )
    assert ended["passed"] + ended.get("skipped", 0) == NUM_ON_OURS
    assert ended.get("skipped", 0) <= 2
