"""What this host shows of ranks of other hosts: counts, states, `moewire top`, merged traces."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import moewire
from harness import required
from harness.outside import Ranks
from harness.team import Team
from hosts import clocked, observed
from hosts.layout import hosts, placed
from hosts.network import NIC, Wired
from moewire import trace
from moewire._observe import clocks as _clocks


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """The environment of programs that a test starts: they import what this process imports."""
    paths = [str(Path(moewire.__file__).parents[1])]
    if "PYTHONPATH" in os.environ:
        paths.append(os.environ["PYTHONPATH"])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}


# -------------------------------------------------------------------- counts --


@pytest.mark.parametrize("layout", ["01|2", "0|1|2"])
def test_counts(team: Team, layout: str) -> None:
    """Both ends agree, the bytes are those of the rows that had to cross, and updates keep them."""
    found = team.run(3, placed, hosts(layout), observed.counted, 4)
    for rank, one in enumerate(found):
        local = next(part for part in layout.split("|") if str(rank) in part)
        assert set(one["after"]) == set("012") - set(local)
        assert one["states"] == {"up"}
        for other, (messages, sent, _, received) in one["after"].items():
            before = one["start"][other]
            rows = one["rows"][other] * one["row_bytes"]
            assert rows > 0
            # There is more: each row has its token and experts, and each message has a header.
            slack = 64 * one["rows"][other] + 512 * (messages - before[0])
            assert rows <= sent - before[1] <= rows + slack, (rank, other, rows, sent)
            now = one["updated"][other]
            assert now[1] >= sent and now[3] >= received, "an update forgets nothing"
            assert one["last"][other][1] > now[1]


def test_counts_are_those_of_the_interface(wired: Wired) -> None:
    """The bytes that a host's links sent went over its interface, plus what TCP and frames add."""
    found = wired.team.run(4, placed, wired.variables(), observed.on_the_wire, NIC)
    for host in (0, 2):
        ours = sum(one["links"] for one in found[host : host + 2])
        messages = sum(one["messages"] for one in found[host : host + 2])
        interface = min(one["interface"] for one in found[host : host + 2])
        assert 0 < sum(one["rows"] for one in found[host : host + 2]) <= ours
        # The rest is heartbeats and acknowledgements; their number depends on time.
        assert ours + 40 * messages <= interface, (ours, messages, interface)


def test_unauthenticated_clients_are_counted(team: Team) -> None:
    for refused in team.run(2, placed, hosts("0|1"), observed.unauthenticated):
        assert all(isinstance(why, str) and n > 0 for why, n in refused.items()), refused


def test_a_lost_rank(team: Team) -> None:
    found = team.run(3, placed, hosts("0|1|2"), observed.lost, dies=frozenset({2}))
    for rank in (0, 1):
        remote, (up, gone) = found[rank], found[rank]["links"]
        assert (up["state"], up["why"]) == ("up", "")
        assert "rank 2" in gone["why"] and "process has ended" in gone["why"], gone
        assert remote["num_ended"] == 1 and remote["num_broken"] == 0, remote


# ----------------------------------------------------------------------- top --


def _remote(group: dict[str, Any]) -> dict[str, Any]:
    (remote,) = group["remote"]
    return remote  # type: ignore[no-any-return]


def test_top(team: Team, tmp_path: Path, environment: dict[str, str]) -> None:
    """Each of two hosts shows the other's ranks: how fast they are, and when they were heard."""
    around = (placed, hosts("0|1"))
    ranks = Ranks(
        team, tmp_path, environment, 2, *around, unresponsive_after_us=observed.MAX_WAIT_US
    )
    try:
        for rank in range(2):
            group = ranks.until(
                lambda g: bool(g["remote"] and _remote(g)["bytes_sent_per_second"]), rank
            )
            assert [one["rank"] for one in group["ranks"]] == [rank]
            remote = _remote(group)
            assert (remote["rank"], remote["carrier"], remote["state"]) == (1 - rank, "tcp", "up")
            assert remote["bytes_received_per_second"] > 0 and 0 <= remote["heard_s"] < 60
        text = ranks.moewire("top", "--once", "--interval", "0.2")
        assert re.search(r"^ +1 +tcp +\w+ +[\d.]+ +[\d.]+ +\d+ +[\d.]+ m?s ago$", text, re.M), text
        _taken_and_merged(ranks)

        ranks.signal(1, signal.SIGSTOP)
        group = ranks.until(lambda g: _remote(g)["state"] in ("unresponsive", "out"), 0)
        assert _remote(group)["heard_s"] > 0.5, group
        ranks.until(lambda g: _remote(g)["state"] == "out" and bool(ranks.lines(0, "is lost")), 0)
        (line,) = ranks.lines(0, "is lost")
        assert line.endswith("no word comes from it any more"), line
        ranks.signal(1, signal.SIGKILL)
        ranks.until(lambda g: _remote(g)["state"] == "out" and ranks.top(1) is None, 0)
    finally:
        ranks.stop()


def _taken_and_merged(ranks: Ranks) -> None:
    """Uses the commands. These two "hosts" have the same clock, so no times are moved."""
    files = [str(ranks.folder / f"{rank}.json") for rank in range(2)]
    for rank, file in enumerate(files):
        group = ranks.top(rank)
        assert group is not None
        ranks.moewire("trace", "take", "--group", str(group["group"]), "-o", file)
        document = json.loads(Path(file).read_text())
        clock = _clocks.parse(document)
        assert clock is not None and clock.ranks == {rank} and set(clock.ahead_ns) == {1 - rank}
        assert {event["pid"] for event in document["traceEvents"]} == {rank}
    merged = str(ranks.folder / "all.json")
    ranks.moewire("trace", "merge", *files, "-o", merged)
    both = _operations(json.loads(Path(merged).read_text()))
    for rank, file in enumerate(files):
        own = _operations(json.loads(Path(file).read_text()))
        assert {key: times for key, times in both.items() if key[1] == rank} == own


# --------------------------------------------------------------------- traces --

AHEAD_S = 5000


def _apart() -> str:
    """Why processes cannot have separate clocks here; empty if they can."""
    if shutil.which("unshare") is None:
        return "time namespaces need unshare"
    tried = subprocess.run(
        ["unshare", "-T", "--monotonic", "1", "true"], capture_output=True, text=True
    )
    return f"time namespaces: {tried.stderr.strip()}" if tried.returncode else ""


@pytest.fixture(scope="module")
def two_traces(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The traces of two processes; the second one's clock is ``AHEAD_S`` ahead of the first
    one's."""
    reason = _apart()
    if reason:
        required.lacking("netns", reason)
    folder = tmp_path_factory.mktemp("clocks")
    paths = [str(folder / f"trace-{rank}.json") for rank in range(2)]
    running = []
    for rank, variables in enumerate(hosts("0|1")):
        program = [sys.executable, clocked.__file__, str(rank), "2", str(folder), "7", paths[rank]]
        apart = ["unshare", "-T", "--monotonic", str(AHEAD_S)] if rank else []
        running.append(subprocess.Popen([*apart, *program, json.dumps(variables)]))
    assert [one.wait(120) for one in running] == [0, 0]
    return paths


def _operations(document: dict[str, Any]) -> dict[tuple[int, int, str], list[float]]:
    """By operation, rank and kind: begin and end, in us."""
    found: dict[tuple[int, int, str], list[float]] = {}
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            key = (event["args"]["operation"], event["pid"], event["cat"])
            times = found.setdefault(key, [event["ts"], 0.0])
            times[0] = min(times[0], event["ts"])
            times[1] = max(times[1], event["ts"] + event["dur"])
    return found


def _before_begun(document: dict[str, Any], within_us: float) -> list[Any]:
    """Operations that ended on one rank before they began on the rank that sent their rows."""
    found = _operations(document)
    return [
        (key, times, found[other])
        for key, times in found.items()
        if (other := (key[0], 1 - key[1], key[2])) in found
        and times[1] + within_us < found[other][0]
    ]


def test_traces_of_two_hosts(two_traces: list[str]) -> None:
    """Cause and effect are in order on one time line, and the shift is as exact as it says."""
    clocks = [_clocks.parse(json.loads(Path(path).read_text())) for path in two_traces]
    assert clocks[0] is not None and clocks[1] is not None
    for one, other in ((0, 1), (1, 0)):
        said: list[str] = []
        merged = trace.merge([two_traces[one], two_traces[other]], said.append)
        shift = _clocks.shift(clocks[other], clocks[one])
        assert shift.how == "heartbeats both ways" and shift.within_ns is not None
        want = AHEAD_S * 10**9 * (1 if one else -1)
        assert abs(shift.ns - want) <= shift.within_ns + 50_000, (shift, want)
        assert len(said) == 1 and two_traces[other] in said[0] and "known to" in said[0], said
        assert len(_operations(merged)) == 2 * 2 * 5
        assert _before_begun(merged, shift.within_ns / 1e3 + 50) == []
        assert {e["pid"] for e in merged["traceEvents"]} == {0, 1}


def test_the_check_of_order_can_fail(two_traces: list[str], tmp_path: Path) -> None:
    plain = []
    for number, path in enumerate(two_traces):
        document = json.loads(Path(path).read_text())
        del document["otherData"]
        plain.append(str(tmp_path / f"{number}.json"))
        trace.write(document, plain[-1])
    assert _before_begun(trace.merge(plain), 0.0), "without clocks they are hours apart"
