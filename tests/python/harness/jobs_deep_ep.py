"""DeepEP's way to call: every combination of options, against torch's own arithmetic."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from moewire.deep_ep import Buffer

from . import verify
from .member import Rank

TOPK = 8
LOW = 0xFFFFFFFF

# use_fp8, round_scale, use_ue8m0.
FORMATS = (
    (False, False, False),
    (True, False, False),
    (True, True, False),
    (True, True, True),
    (False, True, True),  # the last two mean nothing then
)


@dataclass
class World:
    """What every rank sends; each rank makes all of it from the seed."""

    num_max: int
    hidden: int
    experts: int
    x: list[torch.Tensor]
    topk: list[torch.Tensor]
    weights: list[torch.Tensor]


def make_world(rank: Rank, hidden: int, experts: int, noisy: bool, num_max: int = 32) -> World:
    """Rows tell rank and token; ten selections of each rank are left out."""
    world = World(num_max, hidden, experts, [], [], [])
    for source in range(rank.size):
        random = torch.Generator().manual_seed(rank.seed + 17 * source + hidden + noisy)
        x = torch.full((num_max, hidden), float(source - 128))
        x[:, -128:] = torch.arange(num_max).view(-1, 1)
        if noisy:
            x = torch.randn(num_max, hidden, generator=random) * 0.1
            x[:, -128:] = torch.arange(num_max).view(-1, 1)
        idx = torch.rand(num_max, experts, generator=random).topk(TOPK).indices
        for _ in range(10):
            row = torch.randint(num_max, (1,), generator=random)
            idx[row, torch.randint(TOPK, (1,), generator=random)] = -1
        world.x.append(x.bfloat16())
        world.topk.append(idx)
        world.weights.append(torch.rand(num_max, TOPK, generator=random))
    return world


def make_buffer(rank: Rank, world: World, **options: Any) -> Buffer:
    group = dist.group.WORLD if dist.is_initialized() else rank.group()
    size = Buffer.get_low_latency_rdma_size_hint(
        world.num_max, world.hidden, rank.size, world.experts
    )
    local = world.experts // rank.size
    options = {"low_latency_mode": True, "num_qps_per_rank": local, **options}
    return Buffer(group, 0, size, explicitly_destroy=True, **options)


def cast(x: torch.Tensor, power_of_two: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """float8 [T, H] and float32 scales [T, H/128], by torch's operations."""
    blocks = x.float().view(x.shape[0], x.shape[1] // 128, 128)
    amax = blocks.abs().amax(2, keepdim=True).clamp(min=1e-4)
    limit = torch.full_like(amax, 448)
    stored, factor = torch.div(amax, limit), torch.div(limit, amax)
    if power_of_two:
        stored = torch.exp2(torch.ceil(torch.log2(amax.double() / 448))).float()
        factor = 1 / stored
    return (blocks * factor).to(torch.float8_e4m3fn).view(x.shape), stored.squeeze(2)


def scales_of(recv_x: tuple[torch.Tensor, torch.Tensor], ue8m0: bool) -> torch.Tensor:
    """float32 [L, R*M, H/128], whatever the scales are stored as."""
    data, scales = recv_x
    assert scales.stride(1) == 1 and scales.transpose(1, 2).is_contiguous()
    groups = data.shape[2] // 128
    if not ue8m0:
        assert scales.dtype is torch.float32 and scales.shape == (*data.shape[:2], groups)
        return scales
    assert scales.dtype is torch.int32 and scales.shape == (*data.shape[:2], groups // 4)
    as_bytes = scales.reshape(-1).view(torch.uint8)
    return as_bytes.view(torch.float8_e8m0fnu).float().view(*data.shape[:2], groups)


def values_of(recv_x: Any, ue8m0: bool) -> torch.Tensor:
    """bf16 [L, R*M, H]: what the experts see."""
    if isinstance(recv_x, torch.Tensor):
        return recv_x
    data = recv_x[0].float().view(*recv_x[0].shape[:2], -1, 128)
    return (data * scales_of(recv_x, ue8m0).unsqueeze(3)).view(recv_x[0].shape).bfloat16()


def check_received(
    rank: Rank, world: World, result: Any, form: tuple[bool, ...], in_order: bool
) -> None:
    """Counts, and every row bit by bit, wherever it lies; ``in_order``: of tokens."""
    recv_x, count, (src_info, layout, num_max, hidden, experts), _, _ = result
    fp8, power_of_two, ue8m0 = form
    local, rows = world.experts // rank.size, rank.size * world.num_max
    assert (num_max, hidden, experts) == (world.num_max, world.hidden, world.experts)
    assert isinstance(recv_x, tuple) == fp8
    data = recv_x[0] if fp8 else recv_x
    assert data.shape == (local, rows, hidden)
    assert data.dtype is (torch.float8_e4m3fn if fp8 else torch.bfloat16)
    scales = scales_of(recv_x, ue8m0) if fp8 else None
    for expert, source in itertools.product(range(local), range(rank.size)):
        chosen = (world.topk[source] == rank.rank * local + expert).any(1).nonzero().view(-1)
        begin, number = int(layout[expert, source]) >> 32, int(layout[expert, source]) & LOW
        assert number == len(chosen)
        block = slice(begin, begin + number)
        tokens = src_info[expert, block]
        assert torch.equal(tokens if in_order else tokens.sort().values, chosen.int())
        want = world.x[source][tokens.long()]
        if scales is not None:
            want, stored = cast(want.cpu(), power_of_two)  # torch's quotients there may differ
            assert torch.equal(scales[expert, block].cpu(), stored)
        got, want = (rows.cpu().contiguous() for rows in (data[expert, block], want))
        assert torch.equal(got.view(torch.uint8), want.view(torch.uint8))
    assert torch.equal(count.long(), (layout & LOW).sum(1))


def combine_every_way(
    rank: Rank, world: World, buffer: Buffer, result: Any, form: tuple[bool, ...], hook: bool
) -> None:
    recv_x, _, handle, _, _ = result
    y = values_of(recv_x, form[2] and form[0])
    x, idx, weights = world.x[rank.rank], world.topk[rank.rank], world.weights[rank.rank]
    want = (x.float() * weights.masked_fill(idx == -1, 0).sum(1).view(-1, 1)).bfloat16()
    exact = None
    for zero_copy, logfmt in ((True, False), (False, False), (True, False), (False, True)):
        given = y
        if zero_copy:
            given = buffer.get_next_low_latency_combine_buffer(handle)
            given[:] = y
        out = torch.empty_like(x) if logfmt else None
        waited = torch.zeros(rank.size, dtype=torch.int64)
        got, event, finish = buffer.low_latency_combine(
            given,
            idx,
            weights,
            handle,
            use_logfmt=logfmt,
            zero_copy=zero_copy,
            return_recv_hook=hook,
            out=out,
            combine_wait_recv_cost_stats=waited,
        )
        assert event.event is None and (finish is not None) == hook
        if finish is not None:
            finish()
        assert out is None or got is out
        assert not got.isnan().any() and waited.min() >= 0
        assert verify.difference(got, want) < (9e-4 if form[0] else 1e-5)
        exact = got if exact is None else exact
        assert torch.equal(got, exact)  # logfmt changes nothing


def grid(rank: Rank, hidden: int, experts: int, noisy: bool) -> int:
    """All formats, with and without hook, one or two dispatches for a combine."""
    world = make_world(rank, hidden, experts, noisy)
    buffer = make_buffer(rank, world)
    in_order = buffer.runtime is not None and buffer.runtime.drives
    local = experts // rank.size
    everything = torch.stack(world.topk)
    first = rank.rank * local
    want = torch.tensor([int((everything == first + e).sum()) for e in range(local)])
    calls = 0
    for form, hook in itertools.product(FORMATS, (False, True)):
        stats = torch.full((local,), 5, dtype=torch.int32)
        dispatches = 1 + calls % 2
        for _ in range(dispatches):
            result = buffer.low_latency_dispatch(
                world.x[rank.rank],
                world.topk[rank.rank],
                world.num_max,
                experts,
                stats,
                None,
                *form,
                return_recv_hook=hook,
            )
            if hook:
                assert result[4] is not None
                result[4]()
                result[4]()  # counts once
        assert torch.equal(result[1].long(), want)
        assert torch.equal(stats.long(), 5 + dispatches * want)
        effective = (form[0], form[0] and form[1], form[0] and form[2])
        check_received(rank, world, result, effective, in_order)
        combine_every_way(rank, world, buffer, result, form, hook)
        calls += 1
    dist.barrier()
    buffer.destroy()
    return calls


def same_bytes(rank: Rank, hidden: int, experts: int) -> list[int]:
    """One number for the bytes received and combined, in repetitions of the same inputs."""
    world = make_world(rank, hidden, experts, True)
    buffer = make_buffer(rank, world)
    x, idx, weights = world.x[rank.rank], world.topk[rank.rank], world.weights[rank.rank]
    totals = []
    for _ in range(20):
        recv_x, count, handle, _, _ = buffer.low_latency_dispatch(
            x, idx, world.num_max, experts, round_scale=True, use_ue8m0=True
        )
        rows = [recv_x[0][e, :n].contiguous().view(torch.int64) for e, n in enumerate(count)]
        total = sum(int((one * one).sum()) for one in rows)
        out, _, _ = buffer.low_latency_combine(values_of(recv_x, True), idx, weights, handle)
        totals.append(total + int(out.view(torch.int64).sum()))
    dist.barrier()
    buffer.destroy()
    return totals
