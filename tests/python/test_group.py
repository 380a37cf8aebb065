"""Rendezvous in groups and stores; Mooncake's way to call."""

from __future__ import annotations

import pytest
import torch

from harness import jobs_group
from harness.carry_over import Ranks
from moewire._rendezvous import bootstrap


def test_several_buffers_in_one_gloo_group(ranks: Ranks) -> None:
    ranks.run(2, jobs_group.several_buffers_per_group)


def test_subgroups(ranks: Ranks) -> None:
    ranks.run(4, jobs_group.subgroup)


def test_a_group_without_a_store_uses_two_collectives(ranks: Ranks) -> None:
    for devices in ranks.run(2, jobs_group.without_store):
        assert devices == ["cpu torch.uint8 1028"] * 2  # metadata, then votes


def test_a_missing_rank_is_named(ranks: Ranks) -> None:
    text = ranks.run(3, jobs_group.missing_rank)[0]
    assert "missing: rank 1" in text and "rank 0 of 3" in text


def test_wrong_construction(ranks: Ranks) -> None:
    ranks.run(2, jobs_group.wrong_rank)


def test_tcp_store(ranks: Ranks) -> None:
    ranks.run(2, jobs_group.tcp_store)


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.all)], ids="R={}".format)
def test_mooncake_grid(ranks: Ranks, size: int) -> None:
    assert ranks.run(size, jobs_group.mooncake_grid) == [24] * size


def test_mooncake_rows_can_be_traced(ranks: Ranks) -> None:
    ranks.run(2, jobs_group.mooncake_traceable)


class _Group:
    """Stands in for a process group of some backend."""

    def __init__(self, *kinds: str) -> None:
        self._device_types = [torch.device(kind) for kind in kinds]


@pytest.mark.parametrize(
    ("kinds", "device"),
    [(("cpu",), "cpu"), (("cuda", "cpu"), "cpu"), (("cuda",), "cuda:3"), ((), "cpu")],
    ids=["gloo", "gloo and nccl", "nccl", "unknown"],
)
def test_where_tensors_of_a_collective_lie(
    monkeypatch: pytest.MonkeyPatch, kinds: tuple[str, ...], device: str
) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert str(bootstrap.collective_device(_Group(*kinds))) == device  # type: ignore[arg-type]


def test_an_nccl_group_exchanges_device_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no GPU here: a fake records what would be moved and where."""
    moved: list[torch.device] = []
    monkeypatch.setattr(bootstrap, "collective_device", lambda group: torch.device("cpu"))

    def gather(records: list[torch.Tensor], record: torch.Tensor, group: object) -> None:
        moved.append(record.device)
        for number, target in enumerate(records):
            other = bootstrap.pack_record(bytes([number]) * (number + 1))
            target.copy_(torch.frombuffer(bytearray(other), dtype=torch.uint8))

    monkeypatch.setattr(bootstrap.dist, "all_gather", gather)
    monkeypatch.setattr(bootstrap.dist, "get_world_size", lambda group: 3)
    exchange = bootstrap.all_gather_bytes(_Group("cuda"))  # type: ignore[arg-type]
    assert exchange(b"own") == [b"\0", b"\1\1", b"\2\2\2"]
    assert moved == [torch.device("cpu")]
