"""Dispatch and combine against the naive oracle, on real processes."""

from __future__ import annotations

from typing import Any

import pytest

from harness import jobs_oracle, required
from harness.carry_over import Ranks
from harness.team import Team

SIZES = (1, 2, 3, 4, 8)
CASES = {1: 60, 2: 120, 3: 100, 4: 80, 8: 50}


@pytest.mark.parametrize("size", SIZES, ids="R={}".format)
def test_random_cases_have_the_oracles_bits(ranks: Ranks, size: int) -> None:
    if size > 4:
        ranks.need_device("eight processes whose kernels take the processor from one another")
    count = ranks.few(CASES[size], 6)
    results = ranks.run(size, jobs_oracle.random_cases, count, timeout=150)
    assert min(results) >= count


def test_copied_outputs_have_the_oracles_bits(ranks: Ranks) -> None:
    ranks.run(2, jobs_oracle.random_cases, ranks.few(40, 6), True, timeout=90)


def test_every_vector_width_gives_the_same_bits(team: Team) -> None:
    for digests in team.run(2, jobs_oracle.vector_widths, (0, -1, 16, 32), 12):
        assert len(set(digests)) == 1


@pytest.mark.parametrize(
    "tuning",
    [
        {"stores": "streaming"},
        {"stores": "cached", "prefetch": 2},
        {"num_threads": 3, "stores": "streaming", "prefetch": 1},
        {"huge_pages": "advise", "numa": "local"},
        {"spin_us": 0},
        {"spin_us": 3000},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "size",
    [pytest.param(2, marks=pytest.mark.all), pytest.param(4, marks=pytest.mark.long)],
    ids="R={}".format,
)
def test_tuning_changes_no_bit(team: Team, size: int, tuning: dict[str, Any]) -> None:
    for plain, tuned in team.run(size, jobs_oracle.tuned, tuning, 8, timeout=90):
        assert plain == tuned


def test_reserved_huge_pages(team: Team) -> None:
    reason = team.run(2, jobs_oracle.reserved_huge_pages)[0]
    if reason:
        required.lacking("hugepages", reason)


@pytest.mark.all
@pytest.mark.parametrize("shape", [(2, 64, False), (1, 128, True), (3, 256, False)])
def test_at_least_50_block_orders_occur(team: Team, shape: tuple[int, int, bool]) -> None:
    """On every rank, for every shape: each of them compared with the oracle."""
    assert min(team.run(5, jobs_oracle.block_orders, 150, *shape, timeout=120)) >= 50


def test_same_inputs_give_same_bits_for_every_number_of_ranks(ranks: Ranks) -> None:
    everything = []
    for size in SIZES[: ranks.few(len(SIZES), 2)]:
        by_rank = ranks.run(size, jobs_oracle.same_for_every_size, 24, 3)
        for repetition in range(3):
            everything.append([row for rank in by_rank for row in rank[repetition]])
    assert all(rows == everything[0] for rows in everything)


@pytest.mark.parametrize(("ue8m0", "fp8"), [(False, False), (False, True), (True, True)])
def test_float32_outputs_have_the_oracles_bits(ranks: Ranks, ue8m0: bool, fp8: bool) -> None:
    for in_place, copied in ranks.run(ranks.few(3, 2), jobs_oracle.float32_outputs, ue8m0, fp8):
        for moved in (in_place, copied):
            assert moved["num_bytes_reduced"] == moved["num_rows_reduced"] * 512 * 4 > 0
        assert in_place["num_bytes_copied"] == 0
        times = len(jobs_oracle.CALLS)
        assert copied["num_bytes_copied"] == times * copied["num_rows_received"] * 512 * 4


def test_ranks_without_tokens_take_part(ranks: Ranks) -> None:
    ranks.run(ranks.few(3, 2), jobs_oracle.one_token_none_elsewhere)


def test_the_oracle_sees_one_flipped_bit(wrong_team: Team) -> None:
    for text in wrong_team.run(2, jobs_oracle.corrupted):
        assert "combine on rank" in text and "differ" in text
