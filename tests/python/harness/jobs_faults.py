"""Jobs about lost ranks and changes of the membership, through Python."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace

import torch

import moewire
from moewire._native.runtime import Runtime

from . import verify
from .freezing import freeze, while_frozen
from .jobs_input import case_for, expect
from .member import Rank


def exchange(buffer: moewire.Buffer, rank: Rank, number: int = 0) -> None:
    """A dispatch and a combine of all ranks, checked by the oracle."""
    verify.combine(buffer, verify.dispatch(buffer, case_for(rank, number), rank.rank))


def go_on(buffer: moewire.Buffer, rank: Rank, timeout_us: int, lost: set[int]) -> None:
    """A dispatch and a combine in which some ranks are missing, checked by the oracle."""
    case, away = case_for(rank), sorted(lost)
    mask = torch.ones(rank.size, dtype=torch.int32)
    x, topk = verify.bf16(case.x[rank.rank]), torch.from_numpy(case.topk[rank.rank])
    result = buffer.dispatch(x, topk, mask, case.num_max, case.num_experts, timeout_us, False)
    assert [r for r in range(rank.size) if not mask[r]] == away, (mask, away)
    for source in away:
        case.topk[source][:] = -1  # it has sent nothing that counts
    received = verify.Received(case, rank.rank, result, gaps=verify.LOST_LEAVE_GAPS)
    received.check()
    weights = torch.from_numpy(case.weights[rank.rank])
    out, _, _ = buffer.combine(received.new_outputs(), topk, weights, mask, timeout_us, result[2])
    left = case.topk[rank.rank].copy()
    for expert_rank in away:
        left[left // case.num_local == expert_rank] = -1
    want = case.combined(rank.rank, left, case.weights[rank.rank])
    verify.same(verify.bits(out), want, "combine without the lost ranks")


def replaced(rank: Rank) -> None:
    """Three ranks; the third is killed, and the fourth process takes its place."""
    world = replace(rank, size=3, rank=min(rank.rank, 2))
    if rank.rank == 3:
        rank.meet_some("lost", [0, 1, 3])
    buffer = world.buffer()
    if rank.rank < 3:
        exchange(buffer, world)
        rank.meet_some("whole", [0, 1, 2])  # what is sent dies with its sender until it has come
    if rank.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank.rank < 2:
        for _ in range(3):
            go_on(buffer, world, -1, {2})
        rank.meet_some("lost", [0, 1, 3])
        buffer.update_ep_member()
    assert buffer.members() == [0, 1, 2] and buffer.epoch == 2
    for number in range(4):
        exchange(buffer, world, number)
    rank.meet_some("end", [0, 1, 3])
    buffer.close()


def frozen(rank: Rank) -> None:
    """A rank is stopped beyond the deadline, learns it, and comes back as it is."""
    buffer = rank.buffer()
    exchange(buffer, rank)
    rank.meet("whole")
    if rank.rank == 1:
        freeze(rank)
        expect(moewire.FencedError, lambda: exchange(buffer, rank))
    else:
        with while_frozen(rank):
            go_on(buffer, rank, 300_000, {1})
            assert buffer.members() == [0, 2], buffer.members()
            rank.meet_some("survived", [0, 2])  # an update leaves this epoch
    buffer.update_ep_member()
    exchange(buffer, rank)
    rank.meet("end")
    buffer.close()


def scaled(rank: Rank) -> None:
    """Of 8 declared ranks 4 come, then there are 3, 4, 6 and 8; of 4 half as many."""
    buffer, half = None, rank.size // 2
    for step, count in enumerate([half, half - 1, half, half + half // 2, rank.size]):
        if rank.rank < count:
            members = range(count)
            if buffer is None:
                buffer = rank.buffer(members=members if step == 0 else None)
            else:
                buffer.update_ep_member(members=members)
            assert buffer.members() == list(members)
            go_on(buffer, rank, -1, set(range(count, rank.size)))
        elif buffer is not None and step == 1:
            buffer.close()  # the last of them leaves, and comes back with another buffer
            buffer = None
        rank.meet(f"step{step}")
    assert buffer is not None
    buffer.close()


def dies_in_update(rank: Rank) -> float:
    """A rank is killed in the middle of an update: the others begin an epoch without it."""
    buffer = rank.buffer()
    exchange(buffer, rank)
    if rank.rank == 2:

        def die(*_: object) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        Runtime.connect = die  # type: ignore[method-assign]
    start = time.monotonic()
    buffer.update_ep_member()
    seconds = time.monotonic() - start
    assert buffer.members() == [0, 1], buffer.members()
    go_on(buffer, rank, -1, {2})
    rank.meet_some("end", [0, 1])
    buffer.close()
    return seconds


def made_again(rank: Rank) -> None:
    """As upstream's test begins: one rank constructs again, the others update."""
    group = rank.group()
    buffer = moewire.Buffer(group)
    exchange(buffer, rank)
    if rank.rank == 1:
        buffer = moewire.Buffer(group)
    else:
        buffer.update_ep_member()
    exchange(buffer, rank)
    second = moewire.Buffer(group)  # and all of them: another buffer
    exchange(second, rank)
    exchange(buffer, rank)
    rank.meet("end")
    second.close()
    buffer.close()


def by_bytes(rank: Rank) -> None:
    """Ranks that meet through files of their own; the second epoch is smaller."""
    count = 0

    def carry(own: bytes) -> list[bytes | None]:
        nonlocal count
        count += 1
        path = os.path.join(rank.folder, f"bytes-{count}")
        with open(f"{path}-{rank.rank}", "wb") as file:
            file.write(own)
        ranks = range(rank.size) if count <= 2 else range(rank.size - 1)
        rank.meet_some(f"bytes-{count}", list(ranks))
        found: list[bytes | None] = [None] * rank.size
        for other in ranks:
            with open(f"{path}-{other}", "rb") as file:
                found[other] = file.read()
        return found

    buffer = moewire.Buffer.from_exchange(carry, rank.rank, rank.size)
    exchange(buffer, rank)
    if rank.rank < rank.size - 1:
        buffer.update_ep_member()
        assert buffer.members() == list(range(rank.size - 1))
        go_on(buffer, rank, -1, {rank.size - 1})
    rank.meet("end")
    buffer.close()


def deterministic(rank: Rank) -> list[list[int]]:
    """Rows of an expert lie in order of rank, each time."""
    found = []
    with rank.buffer(deterministic=True) as buffer:
        for number in range(12):
            if number % rank.size == rank.rank:
                time.sleep(0.01)
            received = verify.dispatch(buffer, case_for(rank, number), rank.rank)
            layout = received.handle[1]
            begins, counts = layout >> 32, layout & 0xFFFFFFFF
            ends = torch.cumsum(counts, dim=1)
            assert torch.equal(begins[counts > 0], (ends - counts)[counts > 0])
            found.append(layout.flatten().tolist())
            verify.combine(buffer, received)
        rank.meet("end")
    return found


def overlapped(rank: Rank) -> tuple[float, float]:
    """One peer is late by d: with a hook, d passes behind the caller's own work."""
    case, delay = case_for(rank), 0.2
    with rank.buffer() as buffer:
        exchange(buffer, rank)
        rank.meet("begin")
        start = time.monotonic()
        if rank.rank == 1:
            time.sleep(delay)
        received = verify.dispatch(buffer, case, rank.rank, return_recv_hook=True)
        if rank.rank == 0:
            time.sleep(delay + 0.1)  # the caller's own work
        before = time.monotonic()
        received.hook()
        after = time.monotonic()
        received.check()
        verify.combine(buffer, received)
        rank.meet("end")
    return after - before, after - start
