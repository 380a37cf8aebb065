"""DeepEP's second interface, ``ElasticBuffer``, against plain torch over all ranks' inputs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist

from moewire import deep_ep
from moewire.errors import PeerLostError

from .jobs_deep_ep_normal import filled_by
from .member import Rank

HIDDEN = 256


@dataclass
class Inputs:
    """One rank's part; every rank makes that of all from the seed."""

    x: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor
    bias: torch.Tensor


@dataclass
class World:
    rank: int
    size: int
    experts: int
    topk: int
    parts: list[Inputs]

    @property
    def local(self) -> int:
        return self.experts // self.size

    @property
    def mine(self) -> Inputs:
        return self.parts[self.rank]

    def received(self) -> list[tuple[int, int]]:
        """Source rank and token of each row that must come here."""
        return [
            (source, token)
            for source, part in enumerate(self.parts)
            for token in range(part.x.shape[0])
            if any(self.here(int(i)) for i in part.ids[token])
        ]

    def here(self, expert: int) -> bool:
        return expert >= 0 and expert // self.local == self.rank


def make_world(rank: Rank, topk: int, most: int) -> World:
    parts = []
    for source in range(rank.size):
        seeded = torch.Generator().manual_seed(rank.seed + 31 * source + topk)
        tokens = 0 if source == 1 else int(torch.randint(most + 1, (1,), generator=seeded))
        experts = 4 * rank.size
        ids = torch.randint(-1, experts, (tokens, topk), generator=seeded)  # some come twice
        if tokens > 2:
            ids[1] = -1
        parts.append(
            Inputs(
                torch.randint(-64, 64, (tokens, HIDDEN), generator=seeded).bfloat16(),
                ids,
                torch.rand((tokens, topk), generator=seeded),
                torch.randint(-64, 64, (tokens, HIDDEN), generator=seeded).bfloat16(),
            )
        )
    return World(rank.rank, rank.size, 4 * rank.size, topk, parts)


def group_of(rank: Rank) -> dist.ProcessGroup:
    return dist.group.WORLD if dist.is_initialized() else rank.group()


def align(number: int, alignment: int) -> int:
    return -(-number // alignment) * alignment


def places(world: World, alignment: int) -> tuple[dict[tuple[int, int], int], list[int], int]:
    """The expanded row of each row and k, the true count of each local expert, the total."""
    at, counts, total = {}, [], 0
    for expert in range(world.rank * world.local, (world.rank + 1) * world.local):
        before = total
        for row, (source, token) in enumerate(world.received()):
            for k, chosen in enumerate(world.parts[source].ids[token].tolist()):
                if chosen == expert:
                    at[row, k] = total
                    total += 1
        counts.append(total - before)
        total = align(total, alignment)
    return at, counts, total


def shapes(rank: Rank) -> Iterator[tuple[World, deep_ep.ElasticBuffer]]:
    for topk, most in ((1, 3), (4, 40)):
        world = make_world(rank, topk, most)
        buffer = deep_ep.ElasticBuffer(
            group_of(rank),
            num_max_tokens_per_rank=most,
            hidden=HIDDEN,
            num_topk=topk,
            explicitly_destroy=True,
        )
        yield world, buffer
        buffer.destroy()
        buffer.destroy()


def compact(rank: Rank) -> None:
    for world, buffer in shapes(rank):
        for sync in (True, False):
            _compact(world, buffer, sync)


def _compact(world: World, buffer: deep_ep.ElasticBuffer, sync: bool) -> None:
    mine, want = world.mine, world.received()
    stats = torch.ones(world.local, dtype=torch.int32)
    x, ids, weights, handle, event = buffer.dispatch(
        mine.x,
        topk_idx=mine.ids,
        topk_weights=mine.weights,
        num_experts=world.experts,
        expert_alignment=8,
        do_cpu_sync=sync,
        cumulative_local_expert_recv_stats=stats,
    )
    most = buffer.num_max_tokens_per_rank
    rows = len(want) if sync else world.size * most
    assert isinstance(x, torch.Tensor) and ids is not None and weights is not None
    assert event.event is None and x.shape == (rows, HIDDEN) and ids.shape == (rows, world.topk)
    counts = [0] * world.local
    for row, (source, token) in enumerate(want):
        part = world.parts[source]
        assert torch.equal(x[row], part.x[token])
        for k, expert in enumerate(part.ids[token].tolist()):
            here = world.here(expert)
            counts[expert % world.local] += here
            assert int(ids[row, k]) == (expert - world.rank * world.local if here else -1)
            assert float(weights[row, k]) == (float(part.weights[token, k]) if here else 0.0)
        assert int(handle.recv_src_metadata[row, 0]) == source * most + token
    assert (ids[len(want) :] == -1).all()
    assert stats.tolist() == [1 + n for n in counts]
    padded = [align(n, 8) for n in counts]
    assert handle.num_recv_tokens_per_expert_list == (padded if sync else [])
    assert (
        handle.psum_num_recv_tokens_per_expert.tolist() == torch.tensor(padded).cumsum(0).tolist()
    )
    assert int(handle.psum_num_recv_tokens_per_scaleup_rank[-1]) == len(want)
    assert handle.num_recv_tokens == len(want) and not handle.do_expand
    x[:] = 0  # the caller's own
    again, ids_again, _, same, _ = buffer.dispatch(mine.bias, handle=handle)
    assert same is handle and torch.equal(ids_again, ids)
    for row, (source, token) in enumerate(want):
        assert torch.equal(again[row], world.parts[source].bias[token])
    _combined(world, buffer, handle, rows, None)


def _combined(
    world: World,
    buffer: deep_ep.ElasticBuffer,
    handle: deep_ep.EPHandle,
    rows: int,
    at: dict[tuple[int, int], int] | None,
) -> None:
    """Every rank sends back the row that came, times its rank + 1."""
    mine, want = world.mine, world.received()
    x = torch.full((rows, HIDDEN), float("nan"), dtype=torch.bfloat16)
    weights = torch.full((rows, world.topk) if at is None else (rows,), 9.0)
    for row, (source, token) in enumerate(want):
        part = world.parts[source]
        if at is None:
            x[row] = part.x[token] * (world.rank + 1)
            weights[row] = part.weights[token]
    for (row, k), to in (at or {}).items():
        source, token = want[row]
        x[to] = world.parts[source].x[token] * (world.rank + 1)
        weights[to] = world.parts[source].weights[token, k]
    out, home, event = buffer.combine(
        x, handle, topk_weights=weights, bias=(mine.bias, mine.bias), async_with_compute_stream=True
    )
    event.current_stream_wait()
    assert home is not None
    for token in range(mine.x.shape[0]):
        sum_ = 2 * mine.bias[token].float()
        ids = mine.ids[token].tolist()
        for rank in range(world.size):
            times = sum(i >= 0 and i // world.local == rank for i in ids)
            if times:
                one = (mine.x[token] * (rank + 1)).float()
                sum_ += one if at is None else (one * times).bfloat16().float()
        assert torch.equal(out[token], sum_.bfloat16())
        for k, expert in enumerate(ids):
            assert float(home[token, k]) == (float(mine.weights[token, k]) if expert >= 0 else 0.0)


def expanded(rank: Rank) -> None:
    for world, buffer in shapes(rank):
        for alignment, sync in ((1, True), (16, True), (16, False)):
            _expanded(world, buffer, alignment, sync)


def _expanded(world: World, buffer: deep_ep.ElasticBuffer, alignment: int, sync: bool) -> None:
    mine, want = world.mine, world.received()
    at, counts, total = places(world, alignment)
    scales = mine.x[:, :6].float().T.contiguous().T  # not contiguous
    (x, sf), ids, weights, handle, _ = buffer.dispatch(
        (mine.x.to(torch.int8), scales),
        topk_idx=mine.ids,
        topk_weights=mine.weights,
        num_experts=world.experts,
        expert_alignment=alignment,
        do_expand=True,
        do_zero_padding=True,
        do_cpu_sync=sync,
        use_tma_aligned_col_major_sf=True,
    )
    assert ids is None and weights is not None
    rows = total
    if not sync:
        rows = world.size * buffer.num_max_tokens_per_rank * min(world.topk, world.local)
        rows = align(rows + (alignment - 1) * world.local, alignment)
    assert x.shape == (rows, HIDDEN) and sf.shape == (rows, 6) and weights.shape == (rows,)
    assert rows == 0 or sf.stride() == (1, align(rows, 4))
    for (row, k), to in at.items():
        source, token = want[row]
        part = world.parts[source]
        assert torch.equal(x[to].bfloat16(), part.x[token])
        assert torch.equal(sf[to], part.x[token, :6].float())
        assert float(weights[to]) == float(part.weights[token, k])
        assert int(handle.recv_src_metadata[row, 2 + k]) == to
    gaps = sorted(set(range(total)) - set(at.values()))
    assert not x[gaps].any() and not sf[gaps].any() and not weights[gaps].any()
    assert handle.num_unaligned_recv_tokens_per_expert.tolist() == counts
    start = 0
    for expert, count in enumerate(counts):
        assert int(handle.psum_num_recv_tokens_per_expert[expert]) == start + count
        start += align(count, alignment)
    assert handle.do_expand and handle.num_expanded_tokens == rows
    # The handle decides about the form: a caller that does not say it gets expanded rows.
    again = buffer.dispatch(mine.bias, handle=handle)[0]
    for (row, _), to in at.items():
        source, token = want[row]
        assert torch.equal(again[to], world.parts[source].bias[token])
    _combined(world, buffer, handle, rows, at)


def single_rounding(rank: Rank) -> None:
    """Without multiple reduction a token's rows are rounded once."""
    world = make_world(rank, 4, 20)
    buffer = deep_ep.ElasticBuffer(
        group_of(rank),
        num_max_tokens_per_rank=20,
        allow_multiple_reduction=False,
        explicitly_destroy=True,
    )
    mine = world.mine
    x, _, _, handle, _ = buffer.dispatch(
        mine.x, topk_idx=mine.ids, num_experts=world.experts, do_expand=True
    )
    assert isinstance(x, torch.Tensor)
    noisy = (x.float() * 1.01).bfloat16()
    out, weights, _ = buffer.combine(noisy, handle)
    assert weights is None
    times = (mine.ids >= 0).sum(1, keepdim=True)
    exact = (mine.x.float() * 1.01).bfloat16().float() * times  # in float32, for a few of them
    assert torch.equal(out, exact.bfloat16())
    with pytest.raises(ValueError, match="allow_multiple_reduction"):
        buffer.combine(noisy, handle, topk_weights=torch.ones(len(noisy)))
    buffer.destroy()


def awaited(rank: Rank) -> None:
    """Nothing that a call is given is read before its event; tensors that have to be copied."""
    world = make_world(rank, 3, 16)
    buffer = deep_ep.ElasticBuffer(
        group_of(rank), num_max_tokens_per_rank=16, hidden=HIDDEN, explicitly_destroy=True
    )
    mine, on_stream = world.mine, {"allocate_on_comm_stream": True}
    early, _, _, handle, _ = buffer.dispatch(
        mine.x, topk_idx=mine.ids, num_experts=world.experts, topk_weights=mine.weights
    )
    x = torch.zeros(HIDDEN, len(mine.x), dtype=mine.x.dtype).T
    event = filled_by((x, mine.x))
    late = buffer.dispatch(x, handle=handle, previous_event=event, **on_stream)[0]
    assert torch.equal(late, early)
    y = torch.zeros(HIDDEN, len(early), dtype=early.dtype).T
    event = filled_by((y, early))
    out = buffer.combine(y, handle, previous_event=event, **on_stream)[0]
    assert torch.equal(out, buffer.combine(early, handle)[0])
    buffer.destroy()


def views(rank: Rank) -> int:
    """One buffer per layer: their handles are used in any order, over one workspace."""
    buffers = [
        deep_ep.ElasticBuffer(
            group_of(rank), num_max_tokens_per_rank=16, hidden=HIDDEN, explicitly_destroy=True
        )
        for _ in range(28)
    ]
    world = make_world(rank, 3, 16)
    mine = world.mine

    def ids_of(layer: int, source: int) -> torch.Tensor:
        return world.parts[source].ids.roll(layer, 0)

    handles = [
        b.dispatch(mine.x, topk_idx=ids_of(i, rank.rank), num_experts=world.experts)[3]
        for i, b in enumerate(buffers)
    ]
    order = list(range(28))
    random.Random(rank.seed).shuffle(order)
    for i in order:
        got = buffers[i].dispatch(mine.x, handle=handles[i])[0]
        goes = [
            torch.tensor([any(map(world.here, row)) for row in ids_of(i, r).tolist()], dtype=bool)
            for r in range(world.size)
        ]
        want = [part.x[here] for part, here in zip(world.parts, goes, strict=True)]
        assert torch.equal(got, torch.cat(want))
    shared = {id(b._shared()) for b in buffers}
    for i in order:
        buffers[i].destroy()
    return len(shared)


def refusals(rank: Rank) -> list[str]:
    """The text of each error; nothing is sent, so ranks need not agree."""
    world = make_world(rank, 2, 8)
    buffer = deep_ep.ElasticBuffer(
        group_of(rank), num_max_tokens_per_rank=8, hidden=HIDDEN, explicitly_destroy=True
    )
    mine = world.mine
    args = {"topk_idx": mine.ids, "num_experts": world.experts}
    handle = buffer.dispatch(mine.x, **args)[3]
    expanded, _, weights, by_expert, _ = buffer.dispatch(
        mine.x, topk_weights=torch.ones(mine.ids.shape), do_expand=True, **args
    )
    cases = [
        lambda: buffer.dispatch(mine.x),
        lambda: buffer.dispatch(mine.x, topk_idx=mine.ids),
        lambda: buffer.dispatch(torch.zeros(9, HIDDEN).bfloat16(), **args),
        lambda: buffer.dispatch(mine.x, handle=handle, topk_idx=mine.ids),
        lambda: buffer.dispatch(mine.x, handle=handle, do_expand=True),
        lambda: buffer.dispatch(mine.x, handle=handle, do_cpu_sync=True),
        lambda: buffer.dispatch(mine.x, handle=handle, num_experts=99),
        lambda: buffer.dispatch(mine.x, do_zero_padding=True, handle=handle),
        lambda: buffer.dispatch(mine.x, expert_alignment=0, **args),
        lambda: buffer.dispatch(mine.x, previous_event=buffer.capture(), **args),
        lambda: buffer.dispatch(mine.x, do_zero_padding=True, **args),
        lambda: buffer.dispatch(
            mine.x, cumulative_local_expert_recv_stats=torch.zeros(1, dtype=torch.int32), **args
        ),
        lambda: buffer.dispatch(mine.x, topk_weights=torch.zeros(len(mine.x), 3), **args),
        lambda: buffer.dispatch(mine.x[:, :7], **args),
        lambda: buffer.dispatch((mine.x.to(torch.int8), torch.zeros(len(mine.x))), **args),
        lambda: buffer.dispatch(mine.x, topk_idx=mine.ids.new_zeros(9, 2), num_experts=4),
        lambda: buffer.combine(torch.zeros(999, HIDDEN).bfloat16(), handle),
        lambda: buffer.combine(mine.x, None),
        lambda: buffer.combine(expanded, by_expert, weights[:, None]),
        lambda: buffer.engram_write(),
        lambda: buffer.create_agrs_session(),
        lambda: buffer.all_gather(mine.x),
        lambda: deep_ep.ElasticBuffer(group_of(rank), num_max_tokens_per_rank=-1),
    ]
    texts = []
    for case in cases:
        try:
            case()
        except (ValueError, AttributeError) as err:
            texts.append(str(err))
        else:
            texts.append("no error")
    out, _, _ = buffer.combine(
        handle._routing and buffer.dispatch(mine.x, handle=handle)[0], handle
    )
    assert out.shape == mine.x.shape
    buffer.destroy()
    return texts


def unequal_most(rank: Rank) -> None:
    """Each rank says its own number of tokens for M, at construction and in the call."""
    world = make_world(rank, 3, 30)
    mine, num = world.mine, len(world.mine.x)
    buffer = deep_ep.ElasticBuffer(
        group_of(rank), num_max_tokens_per_rank=num, hidden=HIDDEN, explicitly_destroy=True
    )
    handle = buffer.dispatch(
        mine.x, topk_idx=mine.ids, num_experts=world.experts, num_max_tokens_per_rank=num
    )[3]
    most = handle.num_max_tokens_per_rank
    got = [divmod(int(one), most) for one in handle.recv_src_metadata[:, 0]]
    assert got == world.received()
    buffer.destroy()


def late_rank(rank: Rank) -> list[str]:
    """One rank does not come to a dispatch. New buffers work, though the old ones are held."""
    group, world = group_of(rank), make_world(rank, 2, 8)
    mine = world.mine
    options = {"num_max_tokens_per_rank": 8, "hidden": HIDDEN, "num_gpu_timeout_secs": 1}
    old = deep_ep.ElasticBuffer(group, **options)
    texts = []
    if rank.rank != world.size - 1:
        try:
            old.dispatch(mine.x, topk_idx=mine.ids, num_experts=world.experts)
        except PeerLostError as err:
            texts.append(str(err))
    dist.barrier()
    new = deep_ep.ElasticBuffer(group, **options)
    assert new._shared() is not old._shared()
    x, _, _, handle, _ = new.dispatch(mine.x, topk_idx=mine.ids, num_experts=world.experts)
    assert len(x) == len(world.received())
    assert new.combine(x, handle)[0].shape == mine.x.shape
    return texts
