"""``moewire top --store``."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from harness.block_server import Served, _variables
from moewire.store import _top


def _said(started: float, gets: int, **counts: int) -> dict[str, Any]:
    histogram = [0] * 40
    histogram[10], histogram[20] = gets - gets // 10, gets // 10
    names = ("hits", "misses", "bytes_in", "bytes_out", "capped", "bad_puts", "bad_reads")
    none = dict.fromkeys(names, 0)
    return {
        "started_s": started,
        "draining": 0,
        "clients": 2,
        "requests_running": 1,
        "requests": {"get": gets, "put": 0, "exists": 0},
        "counts": {**none, **counts},
        "refused_puts": {"full": counts.get("hits", 0), "conflict": 1},
        "latency": {code: {"time_histogram": histogram} for code in ("get", "put") if gets},
        "store": {
            "live_bytes": 1,
            "capacity_bytes": 4,
            **{f"evicted_{why}": n * gets for n, why in enumerate(("cold", "orphans", "quota"))},
        },
    }


def test_rates() -> None:
    before = _said(5.0, 100, hits=10, bytes_out=1000)
    now = _said(5.0, 300, hits=40, misses=10, bytes_out=5000, capped=8, bad_puts=3, bad_reads=4)
    row = _top.describe("a", now, before, 2.0)
    assert row["per_second"] == {"get": 100, "put": 0, "exists": 0}
    assert row["hit_share"] == pytest.approx(30 / 40)
    assert (row["out_bytes_per_second"], row["refused_per_second"]) == (2000, 15)
    assert (row["get_p50_us"], row["get_p99_us"]) == (2**10 / 1e3, 2**20 / 1e3)
    assert (row["put_p50_us"], row["put_p99_us"]) == (2**10 / 1e3, 2**20 / 1e3)
    assert (row["misses_per_second"], row["capped_per_second"]) == (5, 4)
    assert row["evicted_per_second"] == 3 * 200 / 2, "for any reason"
    assert row["integrity_failures"] == 7, "since the server began"
    assert row["live_share"] == 0.25
    again = _top.describe("a", _said(6.0, 20), before, 2.0)
    assert again["per_second"]["get"] == 10, "another server: it counts from its own start"
    nothing = _top.describe("a", _said(6.0, 0), None, 1.0)
    assert (nothing["hit_share"], nothing["get_p50_us"]) == (None, None)
    text = _top.show([row, nothing, _top.describe("b", None, now, 1.0)])
    assert "<1 us" in text and "75%" in text
    lines = text.splitlines()
    assert lines[3].split() == ["b", "no", "answer"]
    assert lines[5].split()[-4:] == ["300", "15", "4", "7"]
    assert max(map(len, lines)) <= 120, "a terminal's width"
    alone = _top.show([_top.describe("b", None, now, 1.0)])
    assert len(alone.splitlines()) == 2


def test_the_command(tmp_path: Path) -> None:
    with Served(tmp_path) as server, server.client("m") as client:
        ended = threading.Event()

        def work() -> None:
            while not ended.is_set():
                client.put("a", b"x" * 100)
                client.get("a")
                client.get("none")

        thread = threading.Thread(target=work)
        thread.start()
        done = subprocess.run(
            [
                *(sys.executable, "-m", "moewire", "top", "--store", server.address, "--once"),
                *("--json", "--interval", "0.3", "--key-file", str(server.key)),
            ],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
            env=_variables(),
        )
        ended.set()
        thread.join()
        assert done.returncode == 0, done.stderr
        (row,) = json.loads(done.stdout)
        assert row["server"] == server.address
        assert row["per_second"]["get"] > 0
        assert row["hit_share"] == pytest.approx(0.5, abs=0.3)
