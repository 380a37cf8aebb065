"""``moewire store bench``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.block_server import Served, run
from moewire.store import _bench

_SIZES = ["4 KiB", "64 KiB", "1 MiB", "16 x 64 KiB", "8 x 1 MiB"]


def _rows(path: Path) -> list[dict[str, object]]:
    said = json.loads(path.read_text())
    rows: list[dict[str, object]] = said["rows"]
    want = [(op, size) for size in _SIZES for op in ("get", "put")] + [("exists", "512 keys")]
    assert [(row["op"], row["size"]) for row in rows] == want
    return rows


def test_a_server_of_its_own(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = run("bench", "--seconds", "0.01", "--transport", "tcp", "--json", str(out))
    assert done.returncode == 0, done.stderr
    rows = _rows(out)
    assert len(done.stdout.splitlines()) == len(rows) + 2
    assert "get 4 KiB\n" in done.stderr
    assert all(row["client_s_per_gb"] for row in rows if row["bytes"])


def test_a_server_that_runs_has_nothing_more_afterwards(tmp_path: Path) -> None:
    with Served(tmp_path) as server, server.client("m") as client:
        assert client.put("mine", b"stays")
        out = tmp_path / "out.json"
        done = run(
            *("bench", "--servers", server.address, "--key-file", str(server.key)),
            *("--seconds", "0.01", "--json", str(out)),
        )
        assert done.returncode == 0, done.stderr
        assert {row.get("server_s_per_gb") for row in _rows(out)} == {None}
        said = client.stats()["servers"][server.address]
        assert said["store"]["num_blocks"] == 1
        assert said["counts"]["bytes_in"] > 8 << 20
        assert client.get("mine") == b"stays"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--seconds", "0"), "--seconds: 0.0 given"),
        (("--seconds", "601"), "--seconds: 601.0 given"),
        (("--json", "nowhere/x"), "--json: nowhere/x: "),
        (("--servers", "127.0.0.1:1"), "MOEWIRE_KEY_FILE"),
    ],
)
def test_wrong_arguments(tmp_path: Path, options: tuple[str, ...], text: str) -> None:
    done = run("bench", *options, folder=tmp_path)
    assert done.returncode == 1
    assert text in done.stderr


def test_summary() -> None:
    times = {
        "get": [k / 1e6 for k in range(1, 101)],
        "socket": [25e-6] * 3,
        "copy": [1e-6],
        "processor": [1e-6, 2e-6],
    }
    row = _bench.summary("get", "1 KB", 1000, times)
    assert row["count"] == 100
    for name, value in {
        "p50_us": 51,
        "p99_us": 100,
        "gb_per_s": 1000 / 51e-6 / 1e9,
        "socket_gb_per_s": 0.04,
        "copy_gb_per_s": 1,
        "ratio_socket": 25 / 51,
        "ratio_copy": 1 / 51,
        "client_s_per_gb": 1,
        "server_s_per_gb": 2,
    }.items():
        assert row[name] == pytest.approx(value), name
    (_, line, _) = _bench.table([row])
    assert " 51 " in line and "1.00 2.00" in line and "#" * 12 + "." * 12 in line


def test_bars() -> None:
    assert _bench.bar(0) == "." * 24
    assert _bench.bar(0.5) == "#" * 12 + "." * 12
    assert _bench.bar(7) == "#" * 24
