"""examples/store_restart.py without vLLM: its checks, and the store that it starts again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOKENS = [5, 6, 7]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The program's module."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import store_restart

    yield store_restart
    for name in ("store_restart", "restarted_store"):
        sys.modules.pop(name, None)


def lives(example: Any, **changes: dict[str, Any]) -> list[Any]:
    """Three lives as they should be, but for changes of some by name."""
    right = {
        "alone": {"cached": 0, "first": 20.0},
        "cold": {"cached": 0, "first": 20.0},
        "warm": {"cached": 2944, "first": 2.0},
    }
    return [
        example.Life(
            **{"name": name, "ids": TOKENS, "prompt": 3000, **own, **changes.get(name, {})}
        )
        for name, own in right.items()
    ]


def test_what_should_hold_holds(example: Any) -> None:
    found = example.checks(lives(example), 64, 10.0)
    assert [check.ok for check in found] == [True] * 4
    assert "2944 of 3000" in found[2].text and "10.0 times sooner" in found[3].text


@pytest.mark.parametrize(
    ("change", "bad"),
    [
        ({"alone": {"ids": [5, 6, 8]}}, 0),
        ({"cold": {"ids": [5, 6]}}, 0),
        ({"warm": {"ids": [5, 7, 7]}}, 0),
        ({"cold": {"cached": 64}}, 1),
        ({"warm": {"cached": 2880}}, 2),
        ({"warm": {"cached": 3000}}, 2),
        ({"warm": {"first": 2.001}}, 3),
        ({"alone": {"first": 2.0}, "cold": {"first": 2.0}}, 3),
    ],
)
def test_one_thing_wrong_is_one_bad_check(example: Any, change: Any, bad: int) -> None:
    found = example.checks(lives(example, **change), 64, 10.0)
    assert [check.ok for check in found] == [at != bad for at in range(4)]


def test_no_tokens_and_no_whole_block_are_bad(example: Any) -> None:
    none = {name: {"ids": []} for name in ("alone", "cold", "warm")}
    assert not example.checks(lives(example, **none), 64, 10.0)[0].ok
    short = {"warm": {"prompt": 63, "cached": 0}}
    assert not example.checks(lives(example, **short), 64, 10.0)[2].ok


def test_bars_are_as_long_as_the_times(example: Any) -> None:
    found = example.bars(lives(example))
    assert [line.count("█") for line in found] == [48, 48, 5]
    assert found[2].endswith(" 2.00 s")


@pytest.mark.parametrize("one_word", [False, True])
def test_a_users_store_is_found_and_started_again(
    example: Any, tmp_path: Path, one_word: bool
) -> None:
    """At the same address, with the same key and the same blocks."""
    sys.path.insert(0, str(ROOT / "tests" / "python"))
    from harness.block_server import Served, free_port

    blocks = tmp_path / "blocks"
    path = [f"--path={blocks}"] if one_word else ["--path", str(blocks)]
    stores = sys.modules["restarted_store"]
    listen = f"--listen=127.0.0.1:{free_port()}"
    with Served(tmp_path, "--storage", "file", *path, listen) as server:
        with server.client("m") as client:
            assert client.put("key", b"block") and client.flush()
        with stores.found(blocks) as store:
            assert (store.key, store.address) == (server.key, server.address)
            store.restart()
            assert server.process.wait(20) == 0
            with server.client("m") as client:
                assert client.get("key") == b"block"
        with pytest.raises(SystemExit, match="no `moewire store serve` has"):
            stores.found(blocks)
