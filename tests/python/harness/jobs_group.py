"""Jobs about rendezvous: groups, stores, and Mooncake's own way to call."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

import moewire
from moewire._rendezvous import bootstrap

from . import verify
from .jobs_input import case_for, expect
from .member import Rank


def _pair(buffer: moewire.Buffer, rank: Rank) -> None:
    verify.combine(buffer, verify.dispatch(buffer, case_for(rank), rank.rank))


def several_buffers_per_group(rank: Rank) -> None:
    """The n-th construction of each rank belongs together; all of them work at once."""
    group = rank.group()
    buffers = [moewire.Buffer(group) for _ in range(3)]
    assert all(buffer.group is group and buffer.backend is group for buffer in buffers)
    for _ in range(2):
        for buffer in buffers:
            _pair(buffer, rank)
    dist.barrier(group)
    for buffer in buffers:
        buffer.close()


def subgroup(rank: Rank) -> None:
    """Ranks of the subgroup count, not those of the world."""
    rank.group()
    halves = [dist.new_group(list(range(start, rank.size, 2))) for start in (0, 1)]
    mine = halves[rank.rank % 2]
    inside = Rank(dist.get_rank(mine), dist.get_world_size(mine), rank.folder, rank.seed)
    with moewire.Buffer(mine) as buffer:
        assert (buffer.rank, buffer.group_size) == (inside.rank, inside.size)
        _pair(buffer, inside)
        dist.barrier()
    expect(moewire.InvalidArgument, lambda: moewire.Buffer(halves[1 - rank.rank % 2]))
    expect(moewire.InvalidArgument, lambda: moewire.Buffer("gloo"))


def without_store(rank: Rank) -> list[str]:
    """A group that has no store meets by one all_gather; gives what was gathered on."""
    group = rank.group()
    devices: list[str] = []
    original, gather = bootstrap.group_store, dist.all_gather

    def recorded(records: list[torch.Tensor], record: torch.Tensor, **options: Any) -> None:
        devices.append(f"{record.device} {record.dtype} {record.numel()}")
        gather(records, record, **options)

    bootstrap.group_store = lambda _: None
    dist.all_gather = recorded
    try:
        with moewire.Buffer(group) as buffer:
            _pair(buffer, rank)
            dist.barrier(group)
    finally:
        bootstrap.group_store, dist.all_gather = original, gather
    return devices


def missing_rank(rank: Rank) -> str:
    """Rank 1 never constructs; the deadline's text names it."""
    if rank.rank == 1:
        return ""
    return expect(moewire.DeadlineError, lambda: rank.buffer(connect_timeout_us=300_000))


WRONG_TUNING: dict[str, list[object]] = {
    "stores": ["uncached", 1, None],
    "prefetch": [-1, 65, "all"],
    "num_threads": [0, -1, 65, 1.5],
    "huge_pages": ["always", True],
    "numa": ["remote", 0],
    "spin_us": [-1, 1_000_001, 0.5],
}


def wrong_rank(rank: Rank) -> None:
    store = rank.store()
    for arguments in ((store, rank.size, rank.size), (store, -1, rank.size), (store, 0, 0)):
        expect(moewire.InvalidArgument, lambda given=arguments: moewire.Buffer.from_store(*given))
    expect(moewire.InvalidArgument, lambda: rank.buffer(prefix=""))
    expect(moewire.InvalidArgument, lambda: rank.buffer(num_slots=65))
    expect(moewire.InvalidArgument, lambda: rank.buffer(vector_width=48))
    expect(moewire.InvalidArgument, lambda: rank.buffer(-1))
    expect(TypeError, lambda: rank.buffer(num_thread=2))
    for name, values in WRONG_TUNING.items():
        for value in values:
            text = expect(moewire.InvalidArgument, lambda n=name, v=value: rank.buffer(**{n: v}))
            assert text.startswith(name) and "allowed" in text, text
    one_rank_wrong(rank)
    plain = {"vector_width": -1, "stores": "streaming"}
    expect(moewire.InvalidArgument, lambda: rank.buffer(**plain))


def one_rank_wrong(rank: Rank) -> None:
    """It has met no rank when it is refused: the others wait for its next attempt."""
    if rank.rank == 0:
        expect(moewire.InvalidArgument, lambda: rank.buffer(name="one", num_threads=0))
        expect(TypeError, lambda: rank.buffer(name="one", num_thread=2))
    with rank.buffer(name="one") as buffer:
        _pair(buffer, rank)
        rank.meet("one")


def tcp_store(rank: Rank) -> None:
    """Any kind of store will do."""
    import os
    import time

    path = os.path.join(rank.folder, "port")
    if rank.rank == 0:
        server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        with open(path + ".new", "w") as file:
            file.write(str(server.port))
        os.rename(path + ".new", path)
        store = server
    else:
        while not os.path.exists(path):
            time.sleep(0.01)
        with open(path) as file:
            store = dist.TCPStore("127.0.0.1", int(file.read()), is_master=False)
    with moewire.Buffer.from_store(store, rank.rank, rank.size) as buffer:
        _pair(buffer, rank)
        rank.meet("end")


def mooncake_grid(rank: Rank) -> int:
    """Unequal numbers of tokens, expert e multiplies by 1 + 0.1 e; every way to call."""
    import moewire.compat.mooncake

    moewire.compat.mooncake.install()
    from mooncake.mooncake_ep_buffer import Buffer, EventOverlap

    group = rank.group()
    num_max, hidden, experts, topk = 64, 2048, 48, 8
    tokens = int(num_max * (1 - 0.05 * rank.rank / rank.size))
    generator = torch.Generator().manual_seed(rank.seed + rank.rank)
    x = torch.randn(tokens, hidden, generator=generator).bfloat16()
    idx = torch.rand(tokens, experts, generator=generator).topk(topk).indices
    weights = torch.rand(tokens, topk, generator=generator)
    factors = (weights * (1 + 0.1 * idx)).sum(1, keepdim=True)
    want = (x.float() * factors).bfloat16()
    size = Buffer.get_ep_buffer_size_hint(num_max, hidden, group.size(), experts)
    calls = 0
    for disable_p2p in (False, True):
        buffer = Buffer(group, size, disable_p2p)
        for fp8 in (False, True):
            for zero_copy in (False, True):
                for asynchronous, hook in ((False, False), (True, False), (False, True)):
                    buffer._use_fallback = zero_copy
                    active = torch.ones(rank.size, dtype=torch.int32)
                    recv_x, recv_count, handle, event, receive = buffer.dispatch(
                        x, idx, active, num_max, experts, -1, fp8, asynchronous, hook
                    )
                    assert isinstance(event, EventOverlap)
                    receive() if hook else event.current_stream_wait() if asynchronous else None
                    y = _expert_outputs(buffer, recv_x, recv_count, handle, fp8, zero_copy)
                    got, event, receive = buffer.combine(
                        y, idx, weights, active, -1, handle, zero_copy, asynchronous, hook
                    )
                    receive() if hook else event.current_stream_wait() if asynchronous else None
                    tolerance = (0.15, 5e-3) if fp8 else (5e-2, 1e-3)
                    torch.testing.assert_close(
                        got.float(), want.float(), rtol=tolerance[0], atol=tolerance[1] * 20
                    )
                    assert verify.difference(got, want) < 9e-4
                    assert active.tolist() == [1] * rank.size
                    calls += 1
        dist.barrier(group)
        buffer.close()
    return calls


def _expert_outputs(
    buffer: Any, recv_x: Any, recv_count: torch.Tensor, handle: Any, fp8: bool, zero_copy: bool
) -> torch.Tensor:
    if fp8:
        data, scales = recv_x
        blocks = data.float().view(*data.shape[:2], -1, 128)
        values = (blocks * scales.reshape(*data.shape[:2], -1, 1)).view(data.shape)
    else:
        values = recv_x.float()
    local, first = values.shape[0], buffer.rank * values.shape[0]
    factor = 1 + 0.1 * torch.arange(first, first + local)
    outputs = (values * factor.view(-1, 1, 1)).bfloat16()
    if not zero_copy:
        return outputs
    y = buffer.get_next_combine_buffer(handle)
    y.copy_(outputs)
    return y


def mooncake_traceable(rank: Rank) -> None:
    """Rows that say where they come from; two dispatches before a combine; two combines."""
    group = rank.group()
    tokens, hidden, experts, topk = 32, 512, 36, 8
    x = torch.full((tokens, hidden), rank.rank - 128, dtype=torch.bfloat16)
    x[:, -128:] = torch.arange(tokens).view(-1, 1)
    generator = torch.Generator().manual_seed(rank.seed + rank.rank)
    idx = torch.rand(tokens, experts, generator=generator).topk(topk).indices
    for _ in range(10):  # ten selections at random are left out
        row, column = torch.randint(0, tokens, (1,)), torch.randint(0, topk, (1,))
        idx[row, column] = -1
    everybody = [torch.empty_like(idx) for _ in range(rank.size)]
    dist.all_gather(everybody, idx, group=group)
    weights = torch.rand(tokens, topk, generator=generator)
    active = torch.ones(tokens, dtype=torch.int32)  # of the wrong length, as upstream passes it
    size = moewire.Buffer.get_ep_buffer_size_hint(tokens, hidden, rank.size, experts)
    buffer = moewire.Buffer(group, size)
    for number, (hook, fp8) in enumerate(
        [(h, f) for h in (False, True) for f in (False, True)] * 2
    ):
        for _ in range(1 + number % 2):
            recv_x, recv_count, handle, _, receive = buffer.dispatch(
                x, idx, active, tokens, experts, -1, fp8, False, hook
            )
            if hook:
                receive()
        values = _dequantised(recv_x) if fp8 else recv_x
        _check_traces(rank, values, recv_count, handle, torch.stack(everybody), fp8)
        for zero_copy in (False, True):
            y = values.clone()
            if zero_copy:
                buffer.get_next_combine_buffer(handle)[:] = y
                y = buffer.get_next_combine_buffer(handle)
            out = torch.empty_like(x)
            got, _, receive = buffer.combine(
                y, idx, weights, active, -1, handle, zero_copy, False, hook, out
            )
            if hook:
                receive()
            assert got is out and not got.isnan().any()
            want = x * weights.masked_fill(idx == -1, 0).sum(1).view(-1, 1)
            assert verify.difference(got, want.bfloat16()) < (9e-4 if fp8 else 1e-5)
    dist.barrier(group)
    buffer.close()


def _dequantised(recv_x: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    data, scales = recv_x
    blocks = data.float().view(*data.shape[:2], -1, 128) * scales.unsqueeze(3)
    return blocks.view(data.shape).bfloat16()


def _check_traces(
    rank: Rank,
    values: torch.Tensor,
    counts: torch.Tensor,
    handle: Any,
    idx: torch.Tensor,
    fp8: bool,
) -> None:
    src_info, layout, _, _, _ = handle
    for local in range(values.shape[0]):
        expert = rank.rank * values.shape[0] + local
        count = int(counts[local])
        assert count == int((layout[local] & 0xFFFFFFFF).sum()) == int((idx == expert).sum())
        rows = values[local, :count]
        assert torch.equal(rows[:, :-128].amin(1), rows[:, :-128].amax(1))
        if not fp8:
            assert torch.equal(rows[:, -1].int(), src_info[local, :count])
        for source in range(rank.size):
            begin, number = (
                int(layout[local, source]) >> 32,
                int(layout[local, source]) & 0xFFFFFFFF,
            )
            block = rows[begin : begin + number]
            assert number == int((idx[source] == expert).sum())
            assert (block[:, 0].float() - (source - 128)).abs().max() < 5 if number else True
