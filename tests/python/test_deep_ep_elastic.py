"""DeepEP's second interface: compact and expanded rows, handles that outlive calls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness import jobs_elastic
from harness.team import Team
from moewire import deep_ep

SIZES = pytest.mark.parametrize(
    "size", [1, 3, pytest.param(4, marks=pytest.mark.all)], ids="R{}".format
)


@SIZES
def test_compact(team: Team, size: int) -> None:
    team.run(size, jobs_elastic.compact)


@SIZES
def test_expanded(team: Team, size: int) -> None:
    team.run(size, jobs_elastic.expanded)


def test_one_rounding(team: Team) -> None:
    team.run(3, jobs_elastic.single_rounding)


def test_nothing_is_read_before_its_event(team: Team) -> None:
    team.run(3, jobs_elastic.awaited)


def test_28_buffers_share_one_workspace(team: Team) -> None:
    assert team.run(3, jobs_elastic.views) == [1, 1, 1]


def test_room_is_for_what_is_used() -> None:
    """Neither all selections that a token could have nor the longest prompt are paid for."""
    group: Any = SimpleNamespace(size=lambda: 16)
    hint = deep_ep.ElasticBuffer.get_buffer_size_hint
    assert hint(group, 4096, 7168) == hint(group, 65536, 7168, 8) < 300 << 20


def test_what_is_refused_is_named(team: Team) -> None:
    for texts in team.run(2, jobs_elastic.refusals):
        for text, name in zip(
            texts,
            (
                "topk_idx",
                "num_experts",
                "num_max_tokens_per_rank",
                "topk_idx",
                "do_expand",
                "do_cpu_sync",
                "num_experts",
                "do_zero_padding",
                "expert_alignment",
                "allocate_on_comm_stream",
                "do_zero_padding",
                "cumulative_local_expert_recv_stats",
                "topk_weights",
                "x: 14 bytes per token",
                "x[1]",
                "topk_idx",
                "x: 999 rows",
                "handle",
                "topk_weights",
                "engram_write: it is an experiment",
                "create_agrs_session: it is an experiment",
                "all_gather: it is an experiment",
                "num_max_tokens_per_rank",
            ),
            strict=True,
        ):
            assert name in text and text != "no error", text


def test_each_rank_has_its_own_most(team: Team) -> None:
    team.run(3, jobs_elastic.unequal_most)


def test_new_buffers_after_a_late_rank(team: Team) -> None:
    *present, late = team.run(3, jobs_elastic.late_rank)
    assert late == [] and all("[2]" in text for (text,) in present)
