"""Statistics, traces, `moewire top`, warnings of slow and lost ranks."""

from __future__ import annotations

import copy
import json
import logging
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import jobs_observe
from harness.outside import Environment, Ranks
from harness.team import Team
from moewire import Buffer, InvalidArgument, doctor, top, trace
from moewire._native import event_log
from moewire._observe import live, recorded
from moewire.doctor import _advice


@pytest.mark.parametrize("size", [1, 3], ids="R={}".format)
def test_stats(team: Team, size: int) -> None:
    team.run(size, jobs_observe.stats)


def test_no_record(team: Team) -> None:
    team.run(2, jobs_observe.no_record)


def test_traces(team: Team) -> None:
    everything = team.run(3, jobs_observe.traces)[0]
    slices = [event for event in everything["traceEvents"] if event["ph"] == "X"]
    waits = [e for e in slices if e["name"] == "dispatch wait" and e["args"]["last_rank"] == 1]
    late = [e for e in waits if e["dur"] > jobs_observe.LATE / 2 * 1e6]
    assert {event["pid"] for event in late} == {0, 2}, "the ranks that waited for rank 1"
    assert {event["name"] for event in slices} >= {
        "dispatch send",
        "dispatch wait",
        "combine wait",
        "combine reduce",
    }
    for rank in range(3):
        operations = {e["args"]["operation"] for e in slices if e["pid"] == rank}
        assert operations == set(range(5))


def test_the_check_of_traces_can_fail(team: Team) -> None:
    good = trace.document(_slice(pid=rank, ts=10.0 * i) for rank in range(2) for i in range(3))
    jobs_observe.check_trace(good, 2)
    for spoil in (
        lambda t: t["traceEvents"][-1].update(ts=1.0),
        lambda t: t["traceEvents"][-1].update(pid=2),
        lambda t: t["traceEvents"][-1].update(dur=-1.0),
    ):
        bad = copy.deepcopy(good)
        spoil(bad)
        with pytest.raises(AssertionError):
            jobs_observe.check_trace(bad, 2)


def _slice(pid: int, ts: float) -> dict[str, Any]:
    return {"ph": "X", "name": "a", "pid": pid, "tid": 0, "ts": ts + 1, "dur": 9.0, "args": {}}


def test_overlapping_slices_get_lanes() -> None:
    found = trace.document([_slice(0, 0), _slice(0, 5), _slice(0, 9)])
    assert [e["tid"] for e in found["traceEvents"] if e["ph"] == "X"] == [0, 1, 0]


def test_merge_refuses_other_files(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text("[1]")
    with pytest.raises(ValueError, match=r"other\.json"):
        trace.merge([str(other)])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"ts": None}, "NoneType"),
        ({"dur": float("inf")}, "infinity"),
        ({"ts": float("nan")}, "NaN"),
        ({"pid": "a"}, "the rank of a slice is 'a'"),
        ({"name": []}, "unhashable"),
        (None, "no 'pid'"),
    ],
)
def test_merge_refuses_other_slices(
    change: dict[str, Any] | None, says: str, tmp_path: Path
) -> None:
    event = {"ph": "X"} if change is None else {**_slice(0, 1.0), **change}
    path = tmp_path / "other.json"
    path.write_text(json.dumps({"traceEvents": [event]}))
    with pytest.raises(InvalidArgument, match=f"other.json: .*{says}.*a trace of moewire"):
        trace.merge([str(path)])


def test_a_trace_that_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(trace.document([_slice(0, 1.0)])))
    with pytest.raises(InvalidArgument, match=r"--output: .*No such file"):
        trace.main(["merge", str(path), "-o", str(tmp_path / "no" / "t.json")])


def test_a_trace_that_is_not_there_is_named_once(tmp_path: Path) -> None:
    absent = tmp_path / "absent.json"
    with pytest.raises(InvalidArgument) as raised:
        trace.merge([str(absent)])
    assert str(raised.value) == f"{absent}: No such file or directory; allowed: a trace of moewire"


@pytest.mark.parametrize("groups", [[], [1, 2]])
def test_take_needs_one_group(groups: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    found = [live.Group(id=number, epoch=1, active=[]) for number in groups]
    monkeypatch.setattr(live, "find", lambda: live.Found(found))
    says = "--group: not given; allowed: 1, 2" if groups else "no ranks of this user"
    with pytest.raises(InvalidArgument, match=says):
        trace.main(["take", "-o", "unused"])


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "inf", "1e9"])
def test_top_refuses_intervals(interval: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        top.main(["--once", "--interval", interval])
    assert "--interval: more than 0, at most 86400" in capsys.readouterr().err


# --------------------------------------------------- processes from outside --


@pytest.fixture
def ranks(team: Team, tmp_path: Path, environment: Environment) -> Iterator[Ranks]:
    running = Ranks(team, tmp_path, environment, 3)
    yield running
    running.stop()


def states(group: dict[str, Any]) -> list[str]:
    return [rank["state"] for rank in group["ranks"]]


def test_a_frozen_rank_and_a_dead_one(ranks: Ranks) -> None:
    """Seen by `top` and `trace take`, which ask no rank; and one line in the log of each rank."""
    group = ranks.until(lambda g: all(rank["dispatch"]["count"] for rank in g["ranks"]))
    assert [rank["pid"] for rank in group["ranks"]] == ranks.pids
    assert group["active"] == [0, 1, 2] and group["num_ranks"] == 3 and group["epoch"] == 1
    # 16 rows of each rank, spread evenly over six experts but for a rest.
    assert 1.0 <= group["expert_imbalance"] < 1.2, group
    assert not {"frozen", "dead"} & set(states(group))

    ranks.signal(2, signal.SIGSTOP)
    group = ranks.until(
        lambda g: states(g)[2] == "frozen" and g["slowest"] == 2 and g["ranks"][0]["waits_s"]
    )
    assert states(group)[:2] == ["waits", "waits"], "alive: their beat goes on"
    assert [rank["waits_for"] for rank in group["ranks"][:2]] == [[2], [2]]
    text = ranks.moewire("top", "--once", "--interval", "0.1")
    assert re.search(rf"^ +2 +{ranks.pids[2]} frozen", text, re.MULTILINE), text
    assert "waits for rank 2" in text and "slowest rank 2" in text
    _take(ranks, group["group"])

    time.sleep(2.5)  # the library complains after 1, 2 and 4 seconds
    for rank in (0, 1):
        (line,) = ranks.lines(rank, "slow")
        assert re.match(
            rf"WARNING moewire rank 2 \(process {ranks.pids[2]}, epoch 1\) is slow: "
            rf"rank {rank} has waited 1\.\d s for it in (dispatch|combine) of operation \d+: ",
            line,
        ), line
    assert ranks.lines(2, "slow") == []

    ranks.signal(2, signal.SIGKILL)
    group = ranks.until(lambda g: "dead" in states(g))
    assert states(group)[2] == "dead"
    deadline = time.monotonic() + 10
    while not all(ranks.lines(rank, "is lost") for rank in (0, 1)) and time.monotonic() < deadline:
        time.sleep(0.05)
    lost = [line for rank in (0, 1) for line in ranks.lines(rank, "is lost")]
    assert len(lost) == 2, lost
    assert all(f"rank 2 (process {ranks.pids[2]}, epoch 1) is lost" in line for line in lost), lost
    assert all(line.startswith("ERROR moewire rank ") for line in lost)


def _take(ranks: Ranks, group: int) -> None:
    path = ranks.folder / "taken.json"
    ranks.moewire("trace", "take", "--group", str(group), "-o", str(path))
    jobs_observe.check_trace(json.loads(path.read_text()), 3)


def test_a_slow_reader(team: Team) -> None:
    """Waiting for the combine buffer is logged, after the time that the buffer was made with."""
    lines, _ = team.run(2, jobs_observe.slow_reader)
    assert re.match(
        r"rank 1 \(process \d+, epoch 1\) is slow: rank 0 has waited (\d+ ms|\d\.\d s) for it "
        r"in combine buffer of operation 0: it still reads what was combined before$",
        lines[0],
    ), lines


def test_top_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top.live, "find", live.Found)
    assert top.measure({}).groups == []
    assert "no ranks" in top.show([])


def _rank(number: int, state: str, waits_for: list[int], last: list[int]) -> dict[str, Any]:
    waits_s = 9.0 if waits_for else None
    return {"rank": number, "state": state, "waits_for": waits_for, "waits_s": waits_s} | {
        "last_count": last
    }


def test_who_is_slowest() -> None:
    """The rank waited for now, else the one that came last; waits of dead ranks do not count."""
    assert top.slowest([_rank(0, "runs", [], [0, 3, 1]), _rank(1, "runs", [], [1, 5, 2])]) == 1
    assert top.slowest([_rank(0, "waits", [2], [0, 3, 0]), _rank(1, "runs", [], [0, 0, 0])]) == 2
    frozen = [_rank(0, "waits", [1], [0, 0]), _rank(1, "frozen", [0], [0, 0])]
    assert top.slowest(frozen) == 1
    for state in ("dead", "closed", "left", "frozen"):
        assert top.slowest([_rank(0, state, [1], [0, 0]), _rank(1, "dead", [0], [0, 0])]) is None


def test_top_in_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "10")
    monkeypatch.setenv("LINES", "4")
    top._print("0123456789 too wide\n1\n2\n3 too many", once=False)
    assert capsys.readouterr().out == "\x1b[H\x1b[2J0123456789\n1\n2\n"


# ------------------------------------------------------------------- events --


def test_limiter() -> None:
    limiter = event_log.Limiter()
    assert limiter.admit(("slow", 1), 0.0) == 0
    assert limiter.admit(("slow", 2), 0.0) == 0, "another rank has its own line"
    assert limiter.admit(("lost", 1), 0.0) == 0
    assert [limiter.admit(("slow", 1), t) for t in (1.0, 5.0, 9.9)] == [None] * 3
    assert limiter.admit(("slow", 1), 10.0) == 3
    assert limiter.admit(("slow", 1), 20.0) == 0


def test_line() -> None:
    event = {"rank": 3, "pid": 0, "epoch": 2, "kind": "lost", "waited_ns": 1_500_000_000}
    event |= {"waiting": "combine", "operation": 17, "why": "it ended"}
    assert event_log.describe(event, 0, 4) == (
        "rank 3 (process unknown, epoch 2) is lost: rank 0 has waited 1.5 s for it in combine of "
        "operation 17: it ended (4 such lines were left out)"
    )


# ------------------------------------------------------------------- doctor --

TROUBLE: list[tuple[tuple[str, ...], object, str]] = [
    (("library", "error"), "no file", "make lib"),
    (("library", "vector_width"), 0, "none"),
    (("torch",), None, 'pip install "torch'),
    (("security", "memory_files"), "failed: EPERM", "docker run --security-opt seccomp"),
    (("security", "abstract_sockets"), "failed: EPERM", "docker run --security-opt apparmor"),
    (("limits", "open_files_with_buffers"), 100, "echo '* hard nofile 4096'"),
    (("limits", "file_size"), 1 << 20, "ulimit -f unlimited"),
    (("limits", "address_space"), 1 << 30, "ulimit -v unlimited"),
    (("cpus", "usable"), 1, "taskset -cp 0-7"),
    (("cpus",), {"usable": 1, "online": 1}, "none"),
    (("memory", "shmem_huge_pages"), "never", "echo within_size | sudo tee /sys/kernel"),
    (("engines", "SGLang"), {"asked_for": True, "plug_in": "not used", "fix": "pip"}, "pip"),
    (("block_store",), {"problem": "no key file", "fix": "moewire store key"}, "moewire store key"),
    (("between_hosts", "ranks_of_other_hosts"), {"available": False, "reason": "?"}, "see it"),
    (("between_hosts", "address", "loopback"), True, "export MOEWIRE_LISTEN="),
    (("between_hosts", "rdma"), {"available": False, "reason": "no port", "fix": "rdma"}, "rdma"),
    (("between_hosts", "locked_memory", "limit"), 65536, "ulimit -l unlimited"),
]


def _healthy() -> dict[str, Any]:
    return {
        "library": {"vector_width": 64},
        "torch": "2.15.0",
        "security": {"memory_files": "allowed", "abstract_sockets": "allowed"},
        "limits": {
            "open_files": 1024,
            "open_files_hard": "unlimited",
            "open_files_with_buffers": 1 << 20,
            "open_files_needed": 160,
            "file_size": "unlimited",
            "address_space": "unlimited",
        },
        "liveness": {"so_peerpidfd": True, "pidfd_open": True},
        "cpus": {"usable": 8, "online": 8},
        "block_store": {},
        "memory": {"shmem_huge_pages": "advise"},
        "engines": {"SGLang": {"asked_for": False, "plug_in": "not used: off", "fix": "export"}},
        "between_hosts": {
            "transport": "auto",
            "rdma": {"available": True, "reason": "mlx5_0"},
            "rdma_devices": ["mlx5_0 port 1: active, InfiniBand, 100 Gb/sec"],
            "locked_memory": {"limit": "unlimited", "needed_per_remote_rank": 32 << 20},
            "keys": {"available": True, "reason": "from a file"},
            "address": {"available": True, "reason": "10.0.0.1", "loopback": False},
            "ranks_of_other_hosts": {"available": True, "reason": "verbs"},
        },
    }


@pytest.mark.parametrize(("path", "value", "fix"), TROUBLE, ids=lambda v: str(v)[:30])
def test_doctor_says_what_fixes_it(path: tuple[str, ...], value: object, fix: str) -> None:
    report = _healthy()
    assert _advice.warnings(report) == []
    at = report
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = value
    (warning,) = _advice.warnings(report)
    assert warning["fix"].startswith(fix), warning
    assert warning["what"]


def test_doctor_without_pidfds() -> None:
    report = {**_healthy(), "liveness": {"so_peerpidfd": False, "pidfd_open": False}}
    (warning,) = _advice.warnings(report)
    assert "seccomp" in warning["fix"]


def test_every_check_is_tried() -> None:
    assert len(_advice.CHECKS) == len({path[0:2] for path, _, _ in TROUBLE})


def test_doctor_here() -> None:
    report = doctor.report()
    text = doctor._document(report)
    assert "death noticed by" in text and "yama" in text
    tried = report["memory"]["huge_pages_tried"]
    assert re.match("granted|not granted", tried["advise"])
    assert re.match("at least one|none is free|not possible", tried["require"])
    assert text.count("warning: ") == text.count("\n  fix: ") == len(report["warnings"])
    for line in text.splitlines():
        assert "not available" not in line or "; fix: " in line, line


def test_a_fallback_is_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a buffer is made, and where an update brings it."""
    paths = [
        {"rank": 0, "carrier": "verbs", "why": "another host", "fell_back": False},
        {"rank": 1, "carrier": "tcp", "why": "another host; the port is down", "fell_back": True},
    ]
    monkeypatch.setattr(recorded, "paths", lambda _: paths)
    texts = ["rank 1 is reached over tcp, a fallback: another host; the port is down"]
    with Buffer.from_exchange(lambda own: [own], 0, 1) as buffer:
        assert caplog.record_tuples == [("moewire", logging.WARNING, text) for text in texts]
        paths[0]["fell_back"] = True
        texts.append("rank 0 is reached over verbs, a fallback: another host")
        for _ in range(2):
            buffer.update_ep_member()
            assert caplog.record_tuples == [("moewire", logging.WARNING, text) for text in texts]


def test_a_fallback_in_use_is_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event says so; what an update brings is not logged again."""
    paths = [{"rank": 0, "carrier": "tcp", "why": "verbs failed in use", "fell_back": False}]
    event = {"kind": "fell_back", "rank": 0}
    text = "rank 0 is reached over tcp, a fallback: verbs failed in use"
    with Buffer.from_exchange(lambda own: [own], 0, 1) as buffer:
        events = buffer.runtime.events
        new = {"latest": 2, "events": [event, event]}
        monkeypatch.setattr(
            event_log,
            "read_json",
            lambda call, *_: (0, new if call == buffer.runtime.lib.buffer_events else paths),
        )
        monkeypatch.setattr(recorded, "paths", lambda _: paths)
        assert not caplog.record_tuples
        paths[0]["fell_back"] = True
        events._counted -= 1
        events.look()
        buffer.update_ep_member()
        assert caplog.record_tuples == [("moewire", logging.WARNING, text)]
