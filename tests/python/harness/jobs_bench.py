"""Jobs about the benchmark: its floor must move what a dispatch moves, to the same places."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from documents import PEERS, overlap
from moewire.bench import floor, slab, workload
from moewire.bench.cases import Case
from moewire.bench.numpy_floor import NumpyFloor
from moewire.bench.ours import Moewire
from moewire.bench.peers import open_peers
from moewire.bench.worker import Place, Settings

from .member import Rank

TOKENS, HIDDEN, EXPERTS, TOPK = 24, 256, 8, 3


def _case(rank: Rank, dtype: str) -> Case:
    return Case("test", rank.size, TOKENS, HIDDEN, EXPERTS, TOPK, dtype)


def _memory(rank: Rank, work: workload.Workload) -> slab.Memory:
    path = Path(rank.folder) / "floor"
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    os.ftruncate(file, slab.shared_bytes(rank.size, TOKENS, EXPERTS, HIDDEN))
    memory = slab.Memory(work, file)
    os.close(file)
    return memory


def floor_bytes(rank: Rank, dtype: str) -> None:
    """The floor's dispatch stores the bytes of Moewire's; its combine gives Moewire's bits."""
    work = workload.make(_case(rank, dtype), rank.seed, rank.rank)
    ground = floor.Floor(work, _memory(rank, work), floor.load())
    with rank.buffer() as buffer:
        ours = Moewire(work, buffer)
        for number in range(3):  # slabs take turns
            ours.dispatch()
            ground.dispatch()
            rank.meet(f"dispatched{number}")
            _same_rows(work, ours, ground.slab)
            ours.compute()
            _take_outputs(work, ours, ground.slab)
            rank.meet(f"computed{number}")
            ground.combine()
            assert torch.equal(ours.combine_zero_copy(), ground.out)
            assert torch.equal(ground.out, workload.expected(work))
    assert ground.barrier_seconds() >= 0.0
    ground.memcpy()


def _same_rows(work: workload.Workload, ours: Moewire, theirs: slab.Slab) -> None:
    recv_x, _ = ours._received
    data, scales = recv_x if work.fp8 else (recv_x, None)
    for local, source, first, begin, count in _pieces(work, ours):
        expert = work.rank * work.num_local_experts + local
        row = expert * work.num_ranks * work.num_tokens + begin
        mine = data[local, first : first + count].view(torch.uint8).numpy()
        assert (mine == theirs.recv[row : row + count]).all(), (local, source)
        if scales is not None:
            columns = theirs.scales[expert, :, begin : begin + count]
            assert (columns == scales[local, first : first + count].numpy().T).all()


def _pieces(work: workload.Workload, ours: Moewire) -> list[tuple[int, int, int, int, int]]:
    """Local expert, source, first row in our slab and in the floor's, number of rows."""
    assert ours._handle is not None
    found = []
    for local, sources in enumerate(ours._handle[1].tolist()):
        begin = 0
        for source, packed in enumerate(sources):
            first, count = packed >> 32, packed & 0xFFFFFFFF
            found.append((local, source, first, begin, count))
            begin += count
    return found


def _take_outputs(work: workload.Workload, ours: Moewire, theirs: slab.Slab) -> None:
    outputs = ours._in_place.view(torch.uint8).numpy()
    for local, _, first, begin, count in _pieces(work, ours):
        expert = work.rank * work.num_local_experts + local
        row = expert * work.num_ranks * work.num_tokens + begin
        theirs.outputs[row : row + count] = outputs[local, first : first + count]


def numpy_floor(rank: Rank) -> None:
    """Where there is no compiler: the same rows, at the same places."""
    work = workload.make(_case(rank, "bf16"), rank.seed, rank.rank)
    memory = _memory(rank, work)
    NumpyFloor(work, memory).dispatch()
    plain = memory.slabs[1].recv.copy()
    rank.meet("copied")
    memory.slabs[1].recv[:] = 0
    rank.meet("cleared")
    floor.Floor(work, memory, floor.load()).dispatch()
    rank.meet("again")
    for block in slab.blocks(work):
        row = block.expert * work.num_ranks * work.num_tokens + block.first
        rows = slice(row, row + len(block.tokens))
        assert (memory.slabs[1].recv[rows] == plain[rows]).all()


def peer(rank: Rank, name: str, dtype: str) -> str:
    """A peer's result is the expected one; the reason if it cannot run here."""
    work = workload.make(_case(rank, dtype), rank.seed, rank.rank)
    peers, failures = open_peers({name: PEERS[name]}, work, rank.group(), rank.folder)
    if failures:
        return failures[name]
    (one,) = peers
    try:
        for _ in range(2):
            one.dispatch()
            one.compute()
            one.combine()
        found, wanted = one.result().float(), workload.expected(work).float()
        limit = one.tolerance * wanted.abs().max()
        assert (found - wanted).abs().max() <= limit, (found, wanted)
    finally:
        one.close()
    return ""


def overlapping(rank: Rank) -> list[overlap.Samples]:
    """The overlap table in little."""
    delays, overlap.DELAYS_MS = overlap.DELAYS_MS, (0.5, 1.0, 2.0, 3.0)
    try:
        settings = Settings(2, 1, {}, 0, "numpy", rank.seed, tuning={}, warm=False)
        return overlap.run(_case(rank, "bf16"), settings, Place(rank.rank, rank.folder, ""))
    finally:
        overlap.DELAYS_MS = delays
