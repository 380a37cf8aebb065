"""Two hosts that are network namespaces: a real wire between them, which is cut and slowed."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import pytest

from harness import jobs_faults, jobs_flat, jobs_oracle
from harness.member import Rank
from hosts import jobs
from hosts.layout import placed, remote_pairs
from hosts.network import ADDRESSES_V6, NIC, Relayed, Wired

# ------------------------------------------------------ a pair of interfaces --


def test_shared_memory_inside_and_tcp_between(wired: Wired) -> None:
    found = wired.team.run(4, placed, wired.variables(), jobs.carriers)
    assert dict(enumerate(found)) == remote_pairs("01|23")


@pytest.mark.parametrize("listen", [(NIC, NIC), ADDRESSES_V6], ids=["interface", "IPv6"])
def test_other_ways_to_say_where(wired: Wired, listen: tuple[str, str]) -> None:
    found = wired.team.run(4, placed, wired.variables(listen), jobs.carriers)
    assert dict(enumerate(found)) == remote_pairs("01|23")


def test_results(wired: Wired) -> None:
    wired.team.run(4, placed, wired.variables(), jobs_oracle.random_cases, 12)
    wired.team.run(4, placed, wired.variables(), jobs_flat.random_cases, 12)


def test_a_killed_rank_is_replaced(wired: Wired) -> None:
    dies = frozenset({2})
    wired.team.run(4, placed, wired.variables(), jobs_faults.replaced, dies=dies)


def test_the_wire_is_cut(wired: Wired) -> None:
    """Of two halves the one with the lowest rank goes on; the other half is fenced."""
    wire = wired.hosts[0].command(f"ip link set {NIC}")
    variables = wired.variables()
    cut, heal = f"{wire} down", f"{wire} up"
    job = jobs.cut_off
    texts = wired.team.run(4, placed, variables, job, cut, heal, (0, 1), timeout=120)
    for text in texts[2:]:
        assert "or the half with rank 0" in text and "went on without" not in text, text


@pytest.mark.parametrize(
    "job",
    [partial(jobs_oracle.random_cases, count=6), jobs.closes_at_once],
    ids=["exchanges", "closing"],
)
def test_a_slow_wire(wired: Wired, job: Callable[[Rank], object]) -> None:
    """4 MB/s, and a queue that loses packets. A rank that closes loses no data that it had to
    send."""
    limit = "root tbf rate 32mbit burst 16kb latency 20ms"
    for host in wired.hosts:
        host.run(f"tc qdisc add dev {NIC} {limit}")
    try:
        wired.team.run(4, placed, wired.variables(), job)
    finally:
        for host in wired.hosts:
            host.run(f"tc qdisc del dev {NIC} root")


# ------------------------------------------------------------------- a relay --


@pytest.mark.parametrize("order", ["delay 0.0 0.004", "lose 0.02"])
def test_packets_are_late_or_lost(relayed: Relayed, order: str) -> None:
    """Packets of the rendezvous, too."""
    jobs.shell(relayed.tell(order))
    try:
        relayed.team.run(4, placed, relayed.variables(), jobs_oracle.random_cases, 8)
    finally:
        jobs.shell(relayed.tell("clear"))


NUM_CASES = int(os.environ.get("MOEWIRE_RELAYED_CASES", "8"))


# An altered frame ends a connection: with many of them a busy machine may lose a rank.
ALTERED = [
    pytest.param("alter 0.01", protection, marks=pytest.mark.long)
    for protection in ("digest", "encrypt")
]


@pytest.mark.parametrize(
    ("order", "protection"), [("double 0.05", "digest"), ("replay 0.05", "digest"), *ALTERED]
)
def test_packets_are_forged(relayed: Relayed, order: str, protection: str) -> None:
    """Received data is right, or it does not arrive: an altered frame ends a connection."""
    before = relayed.counts()
    # When connections end all the time, it may take more than a second until one is up again.
    timeouts = {"MOEWIRE_UNRESPONSIVE_AFTER_US": "10000000"}
    variables = relayed.variables(MOEWIRE_PROTECTION=protection, **timeouts)
    jobs.shell(relayed.tell(order))
    try:
        relayed.team.run(4, placed, variables, jobs_oracle.random_cases, NUM_CASES)
    finally:
        jobs.shell(relayed.tell("clear"))
    after = relayed.counts()
    done = {name: after[name] - before.get(name, 0) for name in after}
    print(f"{order}, {protection}: {done}")
    assert done[order.split()[0]] > 0


def test_the_wire_stalls(relayed: Relayed) -> None:
    """The wire stalls for less than the unresponsiveness timeout: no rank is lost."""
    stall, clear = relayed.tell("stall"), relayed.tell("clear")
    pause = f"{stall}; (sleep 0.4; {clear}) &"
    relayed.team.run(4, placed, relayed.variables(), jobs.endures, pause, 200)


@pytest.mark.parametrize("num_bytes", [700, 7_000, 70_001])
def test_the_wire_ends_in_the_middle_of_a_frame(relayed: Relayed, num_bytes: int) -> None:
    """The wire carries a given number of further bytes, and nothing after them."""
    cut, heal = relayed.tell(f"cut_after {num_bytes}"), relayed.tell("clear")
    variables = relayed.variables()
    relayed.team.run(4, placed, variables, jobs.cut_off, cut, heal, (0, 1), timeout=120)
