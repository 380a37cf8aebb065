"""Buffers on CUDA with ranks on several hosts, over the emulated driver."""

from __future__ import annotations

import pytest

from harness import cuda_device, emulator
from harness.team import Team
from hosts import jobs_cuda
from hosts.layout import hosts, placed, remote_pairs
from hosts.network import NIC, Wired

TIMEOUT_S = 500.0  # processes start, and kernels run on busy processors


@pytest.fixture(scope="module")
def driver() -> str:
    return "" if cuda_device.wanted() else str(emulator.driver())


def size_of(layout: str) -> int:
    return len(layout.replace("|", ""))


# Four ranks of both kinds of neighbours are in test_results_between_namespaces, too.
@pytest.mark.parametrize(
    ("layout", "ring_bytes"),
    [
        ("0|1", jobs_cuda.RING_BYTES),
        ("0|1|2", 0),
        pytest.param("01|23", 0, marks=pytest.mark.long),
    ],
)
def test_results_and_paths(team: Team, driver: str, layout: str, ring_bytes: int) -> None:
    size = size_of(layout)
    job = jobs_cuda.results, driver, ring_bytes
    found = team.run(size, placed, hosts(layout), *job, timeout=TIMEOUT_S)
    for rank, paths in enumerate(found):
        for path in paths:
            want = remote_pairs(layout)[rank][path["rank"]]
            assert path["carrier"] == ("cuda" if want == "shm" else want), path
            says = "; messages in pinned host memory: tcp registers no device memory"
            assert path["why"].endswith(says) == (want == "tcp"), path


@pytest.mark.parametrize("how", ["ordered", "flat"])
@pytest.mark.parametrize(("layout", "ring_bytes"), [("0|1", 2 * jobs_cuda.RING_BYTES), ("0|12", 0)])
def test_results_in_order_and_flat(
    team: Team, driver: str, layout: str, ring_bytes: int, how: str
) -> None:
    job = jobs_cuda.results, driver, ring_bytes, how
    team.run(size_of(layout), placed, hosts(layout), *job, timeout=TIMEOUT_S)


@pytest.mark.parametrize("layout", ["0|1", "01|2"])
def test_bits_of_the_processor(team: Team, driver: str, layout: str) -> None:
    job = jobs_cuda.as_on_the_processor, driver
    team.run(size_of(layout), placed, hosts(layout), *job, timeout=TIMEOUT_S)


def test_graphs(team: Team, driver: str) -> None:
    team.run(2, placed, hosts("0|1"), jobs_cuda.replayed, driver, timeout=TIMEOUT_S)


# Processes 0 to 2 are the ranks; process 3 takes the place of rank 2, which was killed.
@pytest.mark.parametrize("layout", ["01|23", "0|12|3"])
def test_a_killed_rank_is_masked_and_replaced(team: Team, driver: str, layout: str) -> None:
    job = jobs_cuda.replaced, driver
    team.run(4, placed, hosts(layout), *job, timeout=TIMEOUT_S, dies=frozenset({2}))


def test_a_late_rank_is_masked_and_comes_back(team: Team, driver: str) -> None:
    texts = team.run(2, placed, hosts("0|1"), jobs_cuda.late, driver, timeout=TIMEOUT_S)
    assert "rejoin" in texts[1], texts


def test_a_frozen_rank_is_masked_and_comes_back(team: Team, driver: str) -> None:
    team.run(2, placed, hosts("0|1"), jobs_cuda.frozen, driver, timeout=TIMEOUT_S)


def test_a_frozen_rank_of_this_host_is_ended(team: Team, driver: str) -> None:
    job = jobs_cuda.ended, driver
    team.run(2, placed, hosts("01"), *job, timeout=TIMEOUT_S, dies=frozenset({1}))


def test_closes_in_each_order(team: Team, driver: str) -> None:
    lines = team.run(2, placed, hosts("0|1"), jobs_cuda.closes, driver, timeout=TIMEOUT_S)
    assert not any("is lost" in line for heard in lines for line in heard), lines


def test_a_rendezvous_that_fails(team: Team, driver: str) -> None:
    texts = team.run(2, placed, hosts("0|1"), jobs_cuda.alone, driver, timeout=TIMEOUT_S)
    assert "rank" in texts[0], texts


# ------------------------------------------ hosts that are network namespaces --


def test_results_between_namespaces(wired: Wired, driver: str) -> None:
    job = jobs_cuda.results, driver, jobs_cuda.RING_BYTES
    found = wired.team.run(4, placed, wired.variables(), *job, timeout=TIMEOUT_S)
    for rank, paths in enumerate(found):
        ways = {path["rank"]: path["carrier"] for path in paths}
        want = remote_pairs("01|23")[rank].items()
        assert ways == {other: "cuda" if way == "shm" else way for other, way in want}


def test_the_wire_is_cut(wired: Wired, driver: str) -> None:
    """Of two halves the one with the lowest rank goes on; the other half is fenced."""
    wire = wired.hosts[0].command(f"ip link set {NIC}")
    job = jobs_cuda.cut_off, driver, f"{wire} down", f"{wire} up", (0, 1)
    texts = wired.team.run(4, placed, wired.variables(), *job, timeout=TIMEOUT_S)
    for text in texts[2:]:
        assert "or the half with rank 0" in text and "went on without" not in text, text
