"""``tests/bench hosts``: what it refuses, and its arithmetic. tests/multihost runs it."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from documents import hosts
from documents.hosts import (
    cells,
    markdown,
    network,
    options,
    processors,
    report,
    rows,
    tables,
)
from documents.hosts.cells import Cell, Sample
from documents.hosts.memory import Memory
from moewire.errors import InvalidArgument, MoewireError

MIB = 1 << 20


def settings(*arguments: str) -> Any:
    return options.settings(options.parser(None).parse_args(arguments))


def test_defaults_and_lists() -> None:
    given = settings("--sizes", "64K,3M,100", "--links", "0,2500", "--peers", "none")
    assert given.sizes == (64 << 10, 3 * MIB, 100)
    assert given.links == (0, 2500) and given.peers == ()
    assert settings().peers == options.PEERS and not settings().share_processors
    assert settings("--share-processors").share_processors
    assert settings("--sizes", "", "--ranks", "").sizes == ()


@pytest.mark.parametrize(
    "wrong",
    [
        ["--links", ""],
        ["--links", "-1"],
        ["--sizes", "8"],
        ["--sizes", "257M"],
        ["--connections", "17"],
        ["--connections", "0"],
        ["--ranks", "3"],
        ["--ranks", "2", "--experts", "7"],
        ["--peers", "nccl"],
        ["--repeat", "0"],
    ],
    ids=" ".join,
)
def test_refuses(wrong: list[str]) -> None:
    with pytest.raises(InvalidArgument, match=f"^{wrong[0]}"):
        settings(*wrong)


@pytest.mark.parametrize(
    ("machine", "first", "second"),
    [({5}, {5}, {5}), ({1, 0}, {0}, {1}), ({2, 4, 9}, {2}, {4, 9}), ({0, 1, 2, 3}, {0, 1}, {2, 3})],
    ids=str,
)
def test_processors_of_a_host(machine: set[int], first: set[int], second: set[int]) -> None:
    assert processors.of(0, machine) == first
    assert processors.of(1, machine) == second


def test_a_host_keeps_to_its_processors() -> None:
    everywhere = os.sched_getaffinity(0)
    try:
        processors.confine(1)
        assert os.sched_getaffinity(0) == processors.of(1, everywhere)
    finally:
        os.sched_setaffinity(0, everywhere)


def test_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MoewireError, match="it needs the tools ip, tc, nsenter, unshare"):
        hosts.main(["--idle-wait", "0"])


@pytest.mark.parametrize(
    ("megabits", "message", "connections", "count"),
    [
        (0, 1 << 20, 1, 64),  # 64 MiB
        (0, 64, 1, 512),
        (0, 16 * MIB, 4, 4),
        (0, 64 * MIB, 3, 3),  # one each
        (1000, 64 << 10, 1, 152),  # 80 ms at 125 MB/s are 10 MB
        (1000, 64 << 10, 5, 155),
        (1000, 16 * MIB, 1, 1),
    ],
)
def test_a_burst(megabits: int, message: int, connections: int, count: int) -> None:
    assert cells.count_of(message, connections, megabits) == count


@pytest.mark.parametrize(
    ("message", "depth"), [(64, 8), (4 * MIB, 8), (5 * MIB, 6), (16 * MIB, 2), (64 * MIB, 2)]
)
def test_in_flight(message: int, depth: int) -> None:
    assert cells.depth_of(message) == depth


def test_cells() -> None:
    found = cells.cells([0, 1000], [16 * MIB], [1, 4])
    # 4 messages of 16 MiB would take 1 Gbit/s 0.54 s: left out.
    assert [(c.megabits, c.connections, c.depth, c.num_messages) for c in found] == [
        (0, 1, 1, 4),
        (0, 1, 2, 4),
        (0, 4, 2, 4),
        (1000, 1, 1, 1),
        (1000, 1, 2, 2),
    ]
    assert found[4].link_seconds == pytest.approx(0.268435456)
    assert found[0].link_seconds == 0 and cells.memory_bytes(found) == 32 * MIB
    assert found[2].title == "unshaped, 16 MiB, 2 in flight, 4 connections"
    assert found[3].title == "1 Gbit/s, 16 MiB, one at a time, 1 connection"
    assert all(c.num_messages % c.connections == 0 for c in cells.cells([0], [99999], [3, 7]))


def test_the_floor_is_the_fastest_of_the_plain_copies() -> None:
    cell = Cell(8000, 1000, 1, 1, 1000)  # a megabyte at 1 GB/s
    samples = {name: [Sample(0.004, 0.003)] * 3 for name in cells.FLOORS}
    samples[cells.FLOORS[1]] = [Sample(0.001, 0.0), Sample(0.002, 0.007), Sample(0.009, 0.008)]
    samples["fast"] = [Sample(0.0001, 0.0)] * 3
    found = cells.summarise(cell, samples)
    assert found["floor"] == cells.FLOORS[1]
    floor, slow, fast = (found["series"][n] for n in (found["floor"], cells.FLOORS[0], "fast"))
    assert floor["gigabytes_per_second"] == pytest.approx(0.5) and floor["of_floor"] == 1
    assert floor["p10_gigabytes_per_second"] == pytest.approx(1 / 9)
    assert floor["p90_gigabytes_per_second"] == pytest.approx(1.0)
    assert floor["processor_seconds_per_gigabyte"] == pytest.approx(7)
    assert slow["of_floor"] == pytest.approx(0.5) and slow["of_link"] == pytest.approx(0.25)
    assert fast["of_floor"] == pytest.approx(20)
    assert (
        markdown.writes([found])
        .splitlines()[2]
        .startswith("| 8 Gbit/s | 1000 B | 1 | 1 | 0.5 GB/s |  |")
    )
    assert len(markdown.costs([found]).splitlines()) == 2  # of links without a limit alone
    assert "| unshaped | 1000 B | 1 | 1 | 7.00 |  |" in markdown.costs([{**found, "megabits": 0}])
    text = tables.cell(found)
    assert "sockets, 128 KiB pieces (floor)" in text and "x link" in text


# One token each on 4 ranks of 2 experts; ranks 0 and 1 are host 0.
ROUTING = torch.tensor([[[0, 4, 5]], [[4, 6, 7]], [[0, 1, 2]], [[5, -1, -1]]])


def test_rows_between_hosts() -> None:
    assert rows.between(ROUTING, 8, 0) == (2 + 3, 1 + 2, 1 + 1)
    assert rows.between(ROUTING, 8, 1) == (3, 2, 1)


def test_rows_between_ranks() -> None:
    def both(source: int, target: int) -> tuple[int, int]:
        pair = ROUTING, 8, source, target
        return rows.to_rank(*pair), rows.selections(*pair)

    assert [both(0, target) for target in range(4)] == [(1, 1), (0, 0), (1, 2), (0, 0)]
    assert [both(2, target) for target in range(4)] == [(1, 2), (1, 1), (0, 0), (0, 0)]
    assert both(3, 0) == (0, 0)


def test_random_rows_against_loops(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    routing = torch.rand(6, 9, 12, generator=generator).topk(4).indices
    routing[0, 0] = -1
    for host in (0, 1):
        remote = range((1 - host) * 3, (2 - host) * 3)
        own = [token for rank in range(host * 3, host * 3 + 3) for token in routing[rank].tolist()]
        hits = [[e // 2 for e in token if e >= 0 and e // 2 in remote] for token in own]
        expected = sum(map(len, hits)), sum(len(set(hit)) for hit in hits), sum(map(bool, hits))
        assert rows.between(routing, 12, host) == expected


WHO = ("sockets", "moewire, digest", "moewire, encrypt", "gloo")


def test_exchanges_in_numbers() -> None:
    given = settings("--links", "0,80", "--tokens", "1", "--hidden", "8", "--experts", "8")

    def rank(end: float, sent: int) -> dict[int, Any]:
        names = [f"{who} {kind}" for who in WHO for kind in ("dispatch", "combine")]
        step = {name: [(0.0, end * (1 + name.startswith("gloo")))] * 3 for name in names}
        one = {"spans": step, "sent_bytes": dict.fromkeys(names, [sent] * 3)}
        return {0: one, 80: one}

    ranks = [rank(0.001, 100), rank(0.002, 0), rank(0.001, 300), rank(0.001, 0)]
    found = report.exchange(4, given, ROUTING, ranks)
    # 8 rows of 16 bytes per expert, 5 per rank, for 4 tokens.
    assert found["bytes_per_token"] == {"per_expert": 32.0, "per_rank": 20.0, "per_host": 12.0}
    free, slow = found["links"]
    assert free["steps"]["sockets dispatch"]["median_us"] == pytest.approx(2000)
    # Two tokens on each host.
    assert free["steps"]["sockets dispatch"]["wire_bytes_per_token"] == (50 + 150) / 2
    assert free["steps"]["gloo combine"]["times_floor"] == pytest.approx(2)
    assert free["steps"]["sockets combine"]["times_faster_than_gloo"] == pytest.approx(2)
    assert "times_link" not in free["steps"]["gloo combine"]
    # Host 0 sends 3 rows of 16 bytes at 10 bytes/us, and gets 5 outputs back.
    assert slow["steps"]["sockets dispatch"]["times_link"] == pytest.approx(2000 / 4.8)
    assert slow["steps"]["sockets combine"]["times_link"] == pytest.approx(2000 / 8)
    lines = markdown.exchanges([found]).splitlines()
    assert lines[2].startswith("| 2 + 2 | unshaped | dispatch | 2 ms | 2 ms | 1.00 |  | 1.00 |")
    assert len(lines) == 2 + 4 and all(line.count("|") == 12 for line in lines)
    text = tables.exchange(found)
    assert "32 with a row per expert, 20 per rank, 12 per host" in text and "80 Mbit/s" in text


def test_memory_is_compared() -> None:
    memory, cell = Memory(4000, 7), Cell(0, 1000, 1, 3, 9)
    memory.clear()
    assert not memory.has(cell)
    memory.fill()
    assert not memory.has(cell)  # the fourth place belongs to no message
    memory.bytes[3000:] = 0
    assert memory.has(cell)
    memory.bytes[2999] ^= 1
    assert not memory.has(cell)
    assert os.path.exists(memory.path)


def test_the_shaper_lets_a_segment_through() -> None:
    assert network.burst_bytes(1) == 72 << 10
    assert network.burst_bytes(100_000) == 2_500_000
