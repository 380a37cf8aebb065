"""``tests/bench store``: a small run without peers, and its arithmetic."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from documents import store
from documents.store import markdown, plain, turns
from documents.store.work import EXISTS, GET, MIB, Work
from moewire.errors import InvalidArgument, MoewireError

SMALL = (Work(GET, 1, MIB), Work(GET, 3, 5000, 2), Work(EXISTS, 16, 64))


@pytest.mark.all
def test_a_small_run_that_names_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Gets by TCP and in place bring the bytes: the command compares them itself."""
    monkeypatch.setattr(store, "WORKS", SMALL)
    monkeypatch.setenv("PATH", "")
    out, text = tmp_path / "out.json", tmp_path / "out.md"
    files = ["--json", str(out), "--markdown", str(text)]
    assert store.main(["--seconds", "0.02", "--idle-wait", "0", "--peers", "redis", *files]) == 0
    said = json.loads(out.read_text())
    assert said["absent"] == {"redis": "redis-server is not installed"}
    ours = {"moewire tcp", "moewire shm"}
    have = [{"socket", "one way", "copy"} | ours, {"copy"} | ours, {"socket"} | ours]
    assert [set(row["sides"]) for row in said["rows"]] == have
    assert all(
        side["p50_us"] > 0 and side["count"] > 0
        for row in said["rows"]
        for side in row["sides"].values()
    )
    assert all(said["rows"][0]["sides"][name]["processor_s_per_gb"] > 0 for name in have[0])
    assert text.read_text() in capsys.readouterr().out
    assert "| 3 x 4 KiB, 2 in turn |  |  | " in text.read_text()
    assert text.read_text().endswith("redis was not measured: redis-server is not installed\n")


def test_other_bytes_are_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    copy = plain.Copy()
    monkeypatch.setattr(copy, "right", lambda: False)
    with pytest.raises(MoewireError, match="copy: get 64 KiB: other bytes came back"):
        turns.measure(Work(GET, 1, 1 << 16), [copy], 0.01)


def test_peers_that_there_are_not() -> None:
    with pytest.raises(InvalidArgument, match="--peers etcd: allowed: redis,mooncake, none"):
        store.main(["--peers", "redis,etcd"])


def test_numbers() -> None:
    work = Work(GET, 2, 500)
    found = {
        "socket": turns.Found([[1e-6, 2e-6, 9e-6], [4e-6]], 8e-6),
        "moewire tcp": turns.Found([[6e-6], [4e-6, 4e-6]], 9e-6),
    }
    row = turns.summary(work, found)
    socket, ours = row["sides"]["socket"], row["sides"]["moewire tcp"]
    assert row["bytes"] == 1000 and socket["count"] == 4
    assert (socket["p50_us"], ours["p50_us"]) == pytest.approx((4, 4))
    assert ours["p99_us"] == pytest.approx(6) and ours["times_socket"] == pytest.approx(1)
    # By turn: 6 of 2, 4 of 4.
    assert ours["times_socket_p10"] == pytest.approx(1)
    assert ours["times_socket_p90"] == pytest.approx(3)
    assert ours["gb_per_s"] == pytest.approx(0.25)
    assert ours["processor_s_per_gb"] == pytest.approx(3)
    asked = turns.summary(Work(EXISTS, 8, 64), {"x": turns.Found([[2e-6]], 4e-6)})
    assert asked["sides"]["x"]["keys_per_s"] == pytest.approx(4e6)
    assert asked["sides"]["x"]["keys_per_processor_s"] == pytest.approx(2e6)
    text = markdown.tables({"rows": [row, asked], "sides": [*found, "x"], "absent": {}})
    assert "| 2 x 0 KiB | 4 / 9 (1.00) | 4 / 6 (1.00) |" in text
    assert "| 8 keys | 2; 4.00 (2.00) |" in text
