"""SGLang's own back-end for Mooncake's store, from its wheel, with pools of pages on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import engine_venvs
import pytest
import sglang_hicache_jobs as jobs
from engine_server import EngineServer

from harness.block_server import Served

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module")
def server() -> Iterator[EngineServer]:
    """SGLang's environment, from which the back-end and its pools can be imported."""
    python = engine_venvs.python_of("sglang", own_torch=False)
    paths = [ROOT / "python", ROOT / "tests" / "python"]
    one = EngineServer(python, "sglang_hicache_preload", *paths)
    yield one
    one.close()


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("store"), "--capacity", "64MiB") as store:
        yield store


# How many pieces of memory two pages are: keys and values, or latents, whole or by layer.
LAYOUTS = {"page_first": 4, "page_first_direct": 4, "page_head": 4, "mla page_first": 2}
LAYOUTS["mla layer_first"] = 2 * jobs.LAYERS


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pages_outlive_the_process(server: EngineServer, blocks: Served, layout: str) -> None:
    """One process stores pages, and the next one loads them to other places."""
    environment = {"MOEWIRE_KEY_FILE": str(blocks.key), "MOEWIRE_STORE_TIMEOUT_US": "5000000"}

    def launch(job: str) -> Any:
        (answer,) = server.run(
            1, f"sglang_hicache_jobs.{job}", blocks.address, layout, group=False, **environment
        )
        return answer

    stored = launch("store")
    pieces = [LAYOUTS[layout]] * 2
    assert stored == {"before": 0, "set": [True] * 4, "again": [True] * 4, "zero_copy": pieces}
    loaded = launch("load")
    assert loaded["class"] == "moewire.compat._mooncake_store._store"
    assert (loaded["found"], loaded["got"]) == (4, [True, True, False])
    assert loaded["exact"] == [True, True]
    assert loaded["elsewhere"]
    assert loaded["left"] == 0
