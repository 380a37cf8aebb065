"""Traces of hosts with different clocks, on one time line; and remote ranks in `moewire top`."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from moewire import trace
from moewire._observe import clocks as _clocks
from moewire._observe import live, remote_peers
from moewire._observe.clocks import Clock


class Host:
    """A host with clocks of its own, and what its ranks would have seen of others."""

    def __init__(self, name: str, ranks: set[int], starts: int, wall_off: int) -> None:
        self.name, self.ranks = name, frozenset(ranks)
        self.starts = starts  # the moment at which its monotonic clock is 0
        self.wall_off = wall_off  # the error of its wall clock

    def clock(self, moment: int) -> int:
        return moment - self.starts

    def sees(self, others: list[Host], delays: dict[tuple[str, str], int]) -> Clock:
        ahead = {
            rank: other.wall_off - self.wall_off - delays[other.name, self.name]
            for other in others
            for rank in other.ranks
        }
        return Clock(self.name, self.starts + self.wall_off, self.ranks, ahead)


HOSTS = [
    Host("a", {0, 1}, -(10**14), 3 * 10**9),
    Host("b", {2}, 10**12, -(10**7)),
    Host("c", {3, 4}, 5, 0),
]


@pytest.mark.parametrize("seed", range(20))
def test_shifts(seed: int) -> None:
    """The clocks' true difference, but for half of what the two ways differ."""
    numbers = random.Random(seed)
    delays = {(a.name, b.name): numbers.randrange(10**6) for a in HOSTS for b in HOSTS}
    one, other = numbers.sample(HOSTS, 2)
    clocks = [host.sees([h for h in HOSTS if h is not host], delays) for host in (one, other)]
    there, back = delays[one.name, other.name], delays[other.name, one.name]
    want = one.clock(0) - other.clock(0)

    both = _clocks.shift(clocks[1], clocks[0])
    assert both.how == "heartbeats both ways" and both.within_ns == (there + back) // 2
    assert abs(both.ns - want) <= abs(there - back) / 2 + 1

    for blind in (0, 1):
        seeing = list(clocks)
        seeing[blind] = clocks[blind]._replace(ahead_ns={})
        way = _clocks.shift(seeing[1], seeing[0])
        assert way.how == "heartbeats one way" and way.within_ns is None
        assert abs(way.ns - want) <= max(there, back)

    none = _clocks.shift(*(clock._replace(ahead_ns={}) for clock in reversed(clocks)))
    assert none.how == "wall clocks alone"
    assert none.ns - want == other.wall_off - one.wall_off

    assert _clocks.shift(clocks[0], clocks[0]._replace(ranks=frozenset({7}))).ns == 0


def _slice(pid: int, ts_ns: int) -> dict[str, Any]:
    return {"ph": "X", "name": "a", "pid": pid, "tid": 0, "ts": ts_ns / 1e3, "dur": 9.0, "args": {}}


def test_merging_several_hosts(tmp_path: Path) -> None:
    """Every file's times come onto the first one's clock, in any order, and again when merged."""
    delays = {(a.name, b.name): 1000 for a in HOSTS for b in HOSTS}
    moments = {rank: 10**15 + 10**6 * rank for rank in range(5)}
    paths = {}
    for host in HOSTS:
        for rank in host.ranks:
            clock = host.sees([h for h in HOSTS if h is not host], delays)
            own = clock._replace(ranks=frozenset({rank}))
            document = trace.document([_slice(rank, host.clock(moments[rank]))], own)
            paths[rank] = str(tmp_path / f"{rank}.json")
            trace.write(document, paths[rank])
    for order in ([0, 1, 2, 3, 4], [3, 0, 2, 1, 4], [2, 4, 0, 1, 3]):
        reference = next(host for host in HOSTS if order[0] in host.ranks)
        said: list[str] = []
        merged = trace.merge([paths[rank] for rank in order], said.append)
        _check(merged, reference, moments)
        elsewhere = [rank for rank in order if rank not in reference.ranks]
        assert len(said) == len(elsewhere)
        assert all(paths[r] in line for r, line in zip(elsewhere, said, strict=True)), said
    first = str(tmp_path / "first.json")
    trace.write(trace.merge([paths[0], paths[2]]), first)
    _check(trace.merge([first, paths[1], paths[4], paths[3]]), HOSTS[0], moments)


def _check(merged: dict[str, Any], reference: Host, moments: dict[int, int]) -> None:
    found = {e["pid"]: e["ts"] for e in merged["traceEvents"] if e["ph"] == "X"}
    assert set(found) == set(moments)
    for rank, at in found.items():
        assert abs(at - reference.clock(moments[rank]) / 1e3) < 2.0, (rank, at)


def test_nothing_is_said_of_clocks_on_one_host() -> None:
    assert _clocks.clock_of("self", 5, [0, 1], []) is None
    assert "otherData" not in trace.document([])
    clock = _clocks.clock_of("self", 5, [0], [(2, 0), (3, -7), (3, -9)])
    assert clock is not None and clock.ahead_ns == {3: -7}
    assert _clocks.parse(json.loads(json.dumps(trace.document([], clock)))) == clock


@pytest.mark.parametrize("clock", [{}, 7, {"id": 1, "wall_clock_ns": "x"}, {"ahead_ns": []}])
def test_a_clock_that_is_none(tmp_path: Path, clock: Any) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({"traceEvents": [], "otherData": {_clocks.KEY: clock}}))
    with pytest.raises(ValueError, match=r"bad\.json"):
        trace.merge([str(path)])


# ----------------------------------------------------------------- remote ranks --


def _link(rank: int, state: str, sent: int, heard_ns: int) -> live.Link:
    return live.Link(rank, "tcp", state, 1, sent, 1, sent // 2, 3, 0, 0, 60, 64, heard_ns, 9, 0)


def test_remote_ranks_together() -> None:
    """Sums over the ranks of this host that live, the worst state, the longest silence."""
    now, before = [10**9 * 100, 10**9 * 98], 0
    ranks = []
    for number, state in enumerate(("runs", "waits", "dead")):
        states = ("up", "unresponsive", "out")
        links = [_link(5, states[number], 3000 * (number + 1), now[number % 2])]
        old = [_link(5, "up", 1000 * number, before)]
        described = remote_peers.describe_links(links, old, 100.5, 2.0)
        ranks.append({"state": state, "links": described})
    (remote,) = remote_peers.together(ranks)
    assert (remote["rank"], remote["carrier"], remote["state"]) == (5, "tcp", "unresponsive")
    assert remote["bytes_sent_per_second"] == (3000 + 5000) / 2
    assert remote["heard_s"] == pytest.approx(2.5)
    text = remote_peers.lines([remote])
    assert len(text) == 2 and text[1].split()[:3] == ["5", "tcp", "unresponsive"]
    assert text[1].endswith("2.5 s ago"), text
    assert remote_peers.lines([]) == []


def test_a_first_look_has_no_rates() -> None:
    (link,) = remote_peers.describe_links([_link(1, "up", 10, 0)], [], 5.0, None)
    assert link["bytes_sent_per_second"] is None and link["heard_s"] is None
    (remote,) = remote_peers.together([{"state": "runs", "links": [link]}])
    assert remote_peers.lines([remote])[1].split()[-1] == "never"
