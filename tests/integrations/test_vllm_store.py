"""vLLM with our offloading spec for the CPU and our tier: what outlives the engine, and what a bad
store does to it.

One test has a real server and its client. In the others the client is a stand-in that keeps blocks
in a folder, and fails as it is told to. Each life is an engine in a process of its own. Everything
in float32, where tokens are the same however they are computed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import vllm_store_jobs as jobs
from engine_server import EngineServer
from vllm_tier_jobs import COUNT, DO_NOT_COUNT, ROW

from harness.block_server import Served

SECONDS = 240.0
PATIENT = 5_000_000  # microseconds: a busy machine makes no miss of a hit
CHUNKS = [n // jobs.CHUNK for n in jobs.LENGTHS]

pytestmark = [pytest.mark.slow]


def launch(server: EngineServer, job: str, *arguments: Any, **environment: str) -> Any:
    (answer,) = server.run(1, job, *arguments, timeout=SECONDS, group=False, **environment)
    return answer


def tier(folder: Path, **options: Any) -> dict[str, Any]:
    """Its entry in a configuration."""
    client = "harness.fake_store:Client"
    return {"type": "moewire", "servers": [str(folder)], "client": client, **options}


@pytest.fixture(scope="module")
def model(vllm_server: EngineServer, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The model's folder."""
    folder = str(tmp_path_factory.mktemp("vllm-store") / "model")
    launch(vllm_server, "vllm_store_jobs.make", folder)
    return folder


@pytest.fixture(scope="module")
def alone(vllm_server: EngineServer, model: str) -> Any:
    """What vLLM answers without a connector."""
    return launch(vllm_server, "vllm_store_jobs.life", model, None)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the store."""
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def first(vllm_server: EngineServer, model: str, store: Path) -> Any:
    """A life with an empty store."""
    return launch(vllm_server, "vllm_store_jobs.life", model, tier(store, timeout_us=PATIENT))


@pytest.fixture(scope="module")
def second(vllm_server: EngineServer, model: str, store: Path, first: Any) -> Any:
    """The next one, with what the first has left."""
    return launch(vllm_server, "vllm_store_jobs.life", model, tier(store, timeout_us=PATIENT))


def test_tokens_are_those_without_a_connector(alone: Any, first: Any, second: Any) -> None:
    assert first["ids"] == second["ids"] == alone["ids"]
    assert [len(ids) for ids in alone["ids"]] == [jobs.NEW_TOKENS] * len(jobs.LENGTHS)


def test_the_second_life_loads_every_whole_chunk(first: Any, second: Any) -> None:
    assert first["cached"] == [0] * len(jobs.LENGTHS)
    assert second["cached"] == [n * jobs.CHUNK for n in CHUNKS]
    assert second["namespace"] == first["namespace"]


def test_counts(first: Any, second: Any) -> None:
    total = sum(CHUNKS)
    nothing = dict.fromkeys(first["counts"], 0)
    assert first["counts"] == {**nothing, "lookup_blocks": total, "store_blocks": total}
    loaded = {"lookup_blocks": total, "lookup_hits": total, "load_blocks": total}
    assert second["counts"] == {**nothing, **loaded}
    assert first["backlog"] == second["backlog"] == 0
    assert first["registered"] == [64 << 20]


def test_nothing_of_vllms_memory_is_held_at_the_end(first: Any, second: Any) -> None:
    """Else vLLM cannot unmap it, and says so."""
    assert first["said_at_the_end"] == second["said_at_the_end"] == []


def test_the_tier_needs_no_switch(first: Any) -> None:
    """And turns nothing else on."""
    assert first["active"] is None


@pytest.mark.parametrize("how", ["fails", "hung", "silent", "busy", "lost", "short", "full"])
def test_a_bad_store_costs_no_engine_and_no_token(
    vllm_server: EngineServer, model: str, store: Path, alone: Any, second: Any, how: str
) -> None:
    """The blocks are there, all of them; only a store that takes no more still gives them."""
    given = tier(store, timeout_us=PATIENT if how == "full" else 250_000)
    answer = launch(vllm_server, "vllm_store_jobs.life", model, given, MOEWIRE_TEST_STORE=how)
    assert answer["ids"] == alone["ids"]
    cached = second["cached"] if how == "full" else [0] * len(jobs.LENGTHS)
    assert answer["cached"] == cached
    counts = answer["counts"]
    bad = counts["load_misses"] if how in ("lost", "short") else counts["lookup_failures"]
    assert (bad > 0) is (how != "full")
    assert answer["said_at_the_end"] == []


def test_engine_and_server_start_again(
    vllm_server: EngineServer, model: str, alone: Any, tmp_path: Path
) -> None:
    """With a real store in files: then without an answer, in the middle of a life."""
    files = ("--storage", "file", "--path", str(tmp_path / "blocks"), "--capacity", "64MiB")
    with Served(tmp_path, *files) as server:

        def live(timeout_us: int = PATIENT) -> Any:
            given = real(server, timeout_us)
            return launch(vllm_server, "vllm_store_jobs.life", model, given)

        first = live()
        assert server.end() == 0
        server.start()
        second = live()
        assert first["ids"] == second["ids"] == alone["ids"]
        assert first["cached"] == [0] * len(jobs.LENGTHS)
        assert second["cached"] == [n * jobs.CHUNK for n in CHUNKS]
        server.stop()
        third = live(250_000)
        assert third["ids"] == alone["ids"] and third["cached"] == [0] * len(jobs.LENGTHS)


def real(server: Served, timeout_us: int = PATIENT) -> dict[str, Any]:
    """The tier's entry for a real server."""
    where = {"servers": [server.address], "key_file": str(server.key)}
    return {"type": "moewire", "timeout_us": timeout_us, **where}


def test_a_server_that_is_struck_during_a_load_costs_one_deadline(
    vllm_server: EngineServer, model: str, alone: Any, tmp_path: Path
) -> None:
    """Stopped: what is under way waits for its deadline. Killed: not even that."""
    files = ("--storage", "file", "--path", str(tmp_path / "blocks"), "--capacity", "64MiB")
    with Served(tmp_path, *files) as server:
        assert launch(vllm_server, "vllm_store_jobs.life", model, real(server))["ids"]
        for name in ("SIGSTOP", "SIGKILL"):
            server.go_on()
            given = (model, real(server), server.process.pid, name)
            answer = launch(vllm_server, "vllm_fault_jobs.life", *given)
            assert answer["ids"] == alone["ids"] and answer["cached"] == [0] * len(CHUNKS)
            assert answer["counts"]["lookup_hits"] == CHUNKS[0], "the first prompt's alone"
            assert answer["counts"]["load_blocks"] == 0 and answer["servers"] == [None]
            late, *later = answer["late"]
            assert (late > 0) is (name == "SIGSTOP") and later == [late] * len(later)
        assert answer["broken"]


def test_a_store_that_is_too_small_has_room_for_the_newest(
    vllm_server: EngineServer, model: str, alone: Any, tmp_path: Path
) -> None:
    """It evicts while blocks are loaded and stored; two lives of this."""
    with Served(tmp_path, "--capacity", "4MiB") as server:
        lives = [launch(vllm_server, "vllm_store_jobs.life", model, real(server)) for _ in range(2)]
        with server.client("another") as client:
            (said,) = client.stats()["servers"].values()
    assert [one["ids"] for one in lives] == [alone["ids"]] * 2
    cached = lives[1]["cached"]
    assert all(
        n % jobs.CHUNK == 0 and n <= jobs.CHUNK * c for n, c in zip(cached, CHUNKS, strict=True)
    )
    assert sum(cached) < jobs.CHUNK * sum(CHUNKS)
    assert said["store"]["num_blocks"] < sum(CHUNKS), said


def test_a_full_store_takes_nothing_and_is_asked_all_the_same(
    vllm_server: EngineServer, model: str, alone: Any, tmp_path: Path
) -> None:
    answer = launch(
        vllm_server, "vllm_store_jobs.life", model, tier(tmp_path), MOEWIRE_TEST_STORE="full"
    )
    assert answer["ids"] == alone["ids"] and answer["backlog"] == 0
    assert answer["counts"]["store_failures"] == sum(CHUNKS)


def test_a_server_that_is_full_refuses_blocks_and_costs_no_token(
    vllm_server: EngineServer, model: str, alone: Any, tmp_path: Path
) -> None:
    """All of its room is pinned by another client: what the engine stores has no place."""
    with Served(tmp_path, "--capacity", "4MiB") as server:
        with server.client("another") as other:
            for size in (256 << 10, 4 << 10):
                keys = [f"{size}/{n}" for n in range(500)]
                stored = next(n for n, key in enumerate(keys) if not _pinned(other, key, size))
                assert other.prefix(keys) == stored > 0
        answer = launch(vllm_server, "vllm_store_jobs.life", model, real(server))
        with server.client("another") as other:
            (said,) = other.stats()["servers"].values()
    assert answer["ids"] == alone["ids"] and answer["cached"] == [0] * len(CHUNKS)
    assert answer["counts"]["store_failures"] == sum(CHUNKS) and answer["backlog"] == 0
    assert answer["said_at_the_end"] == []
    assert said["store"]["full"] > sum(CHUNKS) and said["refused_puts"]["full"]


def _pinned(client: Any, key: str, size: int) -> bool:
    """Puts a block for good; False: there is no room for it."""
    return bool(client.put(key, bytes(size))) and client.pin([key], 3600.0) == [True]


def test_a_slow_store_is_spared_what_it_cannot_take(
    vllm_server: EngineServer, model: str, alone: Any, tmp_path: Path
) -> None:
    given = tier(tmp_path, max_backlog_bytes=3 * 131072)
    answer = launch(vllm_server, "vllm_store_jobs.life", model, given, MOEWIRE_TEST_STORE="slow")
    assert answer["ids"] == alone["ids"]
    counts = answer["counts"]
    assert counts["store_shed_blocks"] and counts["store_blocks"]
    assert counts["store_shed_blocks"] + counts["store_blocks"] == sum(CHUNKS)


def test_another_namespace_shares_nothing(
    vllm_server: EngineServer, model: str, store: Path, alone: Any, second: Any
) -> None:
    answer = launch(vllm_server, "vllm_store_jobs.life", model, tier(store, salt="another"))
    assert answer["ids"] == alone["ids"] and answer["cached"] == [0] * len(jobs.LENGTHS)
    assert answer["counts"]["lookup_hits"] == 0


def test_every_field_of_vllms_configuration_is_accounted_for(vllm_server: EngineServer) -> None:
    """A version of vLLM with a further field is to be looked at."""
    answer = launch(vllm_server, "vllm_tier_jobs.fields")
    assert answer["counts"] == COUNT and answer["does_not"] == DO_NOT_COUNT


def test_the_worker_copies_what_loops_would(vllm_server: EngineServer) -> None:
    """Several groups, blocks in the middle of a chunk, padding, strides."""
    assert launch(vllm_server, "vllm_worker_jobs.copies") == []


def test_the_tier_by_itself(vllm_server: EngineServer, tmp_path: Path) -> None:
    """What vLLM's manager of tiers sees of it."""
    answer = launch(vllm_server, "vllm_tier_jobs.contract", str(tmp_path))
    assert answer["class"] == "MoewireTier" and answer["before"]
    assert answer["first"] == "RETRY" and answer["empty"] == ["MISS"] * 3
    assert answer["stored"] == [[7, True, None, 2 * ROW]]
    assert answer["found"] == ["HIT", "HIT", "MISS"]
    assert answer["loaded"] == [[8, False, ["one"], ROW]]
    assert answer["rows"] == [1, 0, 0]
    assert answer["afterwards"] == ["HIT", "MISS", "MISS"]
    assert answer["touched"] == [["one", "two", "three"]]
    stored = [["one", "two"], "STORAGE", False, "REMOTE"]
    assert answer["events"] == [stored, [["two", "three"], "STORAGE", True, "REMOTE"]]
    assert answer["events_again"] == 0 and answer["stats_again"]
    assert set(answer["stats"]) <= set(answer["defined"])
    assert answer["stats"]["vllm:kv_offload_moewire_load_blocks"] == 1
    assert answer["stats"]["vllm:kv_offload_moewire_load_misses"] == 2


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"servers": None}, "servers: none given"),
        ({"slat": "x"}, "slat: no option of the tier"),
        ({"client": "moewire.nowhere:Client"}, "which is not there"),
    ],
)
def test_a_wrong_configuration_is_refused(
    vllm_server: EngineServer, model: str, tmp_path: Path, options: Any, text: str
) -> None:
    said, left = launch(vllm_server, "vllm_tier_jobs.refused", model, tier(tmp_path, **options))
    assert text in said and left == []
