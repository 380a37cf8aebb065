"""vLLM's own connector for Mooncake's store, unchanged, on the block store over a restart.

Each life is an engine in a process of its own. Everything in float32, where tokens are the same
however they are computed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import vllm_store_jobs as jobs
from engine_server import EngineServer

from harness.block_server import Served

SECONDS = 240.0
CACHED = [n // jobs.BLOCK * jobs.BLOCK for n in jobs.LENGTHS]
# A prompt that is there whole is computed from its last block on: vLLM needs one token's output.
CACHED = [
    cached - jobs.BLOCK * (cached == n) for cached, n in zip(CACHED, jobs.LENGTHS, strict=True)
]

pytestmark = [pytest.mark.slow]


def launch(server: EngineServer, job: str, *arguments: Any, **environment: str) -> Any:
    (answer,) = server.run(1, job, *arguments, timeout=SECONDS, group=False, **environment)
    return answer


def test_engine_and_server_start_again(vllm_server: EngineServer, tmp_path: Path) -> None:
    """The second engine loads what the first has stored; then the server does not answer."""
    model = str(tmp_path / "model")
    launch(vllm_server, "vllm_store_jobs.make", model)
    alone = launch(vllm_server, "vllm_store_jobs.life", model, None)
    configuration = tmp_path / "mooncake.json"
    files = ("--storage", "file", "--path", str(tmp_path / "blocks"), "--capacity", "64MiB")
    with Served(tmp_path, *files) as server:

        def live(timeout_us: int = 5_000_000) -> Any:
            given = {"metadata_server": "P2PHANDSHAKE", "protocol": "tcp", "mode": "embedded"}
            configuration.write_text(json.dumps({**given, "master_server_address": server.address}))
            return launch(
                vllm_server,
                "vllm_mooncake_jobs.life",
                model,
                MOONCAKE_CONFIG_PATH=str(configuration),
                MOEWIRE_MOONCAKE_STORE="1",
                MOEWIRE_KEY_FILE=str(server.key),
                MOEWIRE_STORE_TIMEOUT_US=str(timeout_us),
            )

        first = live()
        assert server.end() == 0
        server.start()
        second = live()
        assert first["ids"] == second["ids"] == alone["ids"]
        assert first["cached"] == [0] * len(jobs.LENGTHS)
        assert second["cached"] == CACHED
        assert first["class"] == "moewire.compat._mooncake_store._store"
        assert second["counts"]["hits"] == sum(CACHED) // jobs.BLOCK
        assert second["counts"]["bad_tags"] == 0
        assert first["health"] == second["health"] == 1, "the store was closed with its engine"
        server.stop()
        third = live(250_000)
        assert third["ids"] == alone["ids"]
        assert third["cached"] == [0] * len(jobs.LENGTHS)
