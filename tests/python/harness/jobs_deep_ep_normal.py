"""DeepEP's normal mode on every rank, compared with ``normal_world``."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.distributed as dist

import moewire
from moewire._base.place import HOST
from moewire.deep_ep import Buffer, EventHandle, EventOverlap, _layout
from moewire.event import Event

from .jobs_input import expect
from .member import Rank
from .normal_world import HIDDEN, LOCAL_EXPERTS, SCALES, TOPK, World, answers_of, same, world_of

MOST, LOW_HIDDEN = 8, 128  # tokens and hidden size of the low-latency mode
CONTENTS = ("random", "constant", "float8 and float32 scales", "float8 and packed scales")


def buffer_of(rank: Rank, **options: Any) -> Buffer:
    return Buffer(rank.group(), **options)


def layout_of(buffer: Buffer, world: World, mine: int) -> dict[str, torch.Tensor | None]:
    """The layout as arguments of a dispatch."""
    names = (
        "num_tokens_per_rank",
        "num_tokens_per_rdma_rank",
        "num_tokens_per_expert",
        "is_token_in_rank",
    )
    *layout, event = buffer.get_dispatch_layout(world.topk_idx[mine], world.num_experts)
    assert event.event is None
    return dict(zip(names, layout, strict=True))


def fresh(
    buffer: Buffer, world: World, mine: int, x: Any = None, topk: bool = True, **options: Any
) -> Any:
    """A dispatch with a layout of its own."""
    if topk:
        # The caller may overwrite its own afterwards.
        ids, weights = world.topk_idx[mine].clone(), world.topk_weights[mine].clone()
        options |= {"topk_idx": ids, "topk_weights": weights}
    x = world.x[mine] if x is None else x
    return buffer.dispatch(x, **layout_of(buffer, world, mine), **options)


def check_layout(rank: Rank, buffer: Buffer, world: World) -> None:
    """Against counting by hand."""
    mine, ids = rank.rank, world.topk_idx[rank.rank].view(-1).tolist()
    layout = layout_of(buffer, world, mine)
    goes = [
        [world.goes(mine, token, r) for r in range(rank.size)]
        for token in range(len(world.x[mine]))
    ]
    in_rank = torch.tensor(goes, dtype=torch.bool).view(-1, rank.size)
    same(layout["is_token_in_rank"], in_rank, "is_token_in_rank")
    per_rank = torch.tensor([sum(column) for column in in_rank.T.tolist()], dtype=torch.int32)
    same(layout["num_tokens_per_rank"], per_rank, "num_tokens_per_rank")
    assert layout["num_tokens_per_rdma_rank"] is None
    counts = [ids.count(expert) for expert in range(world.num_experts)]
    same(
        layout["num_tokens_per_expert"], torch.tensor(counts, dtype=torch.int32), "counts by expert"
    )


def sent(world: World, content: str) -> list[Any]:
    """What each rank dispatches."""
    if content == "random":
        return list(world.x)
    if content == "constant":
        return [torch.full_like(x, float(rank)) for rank, x in enumerate(world.x)]
    found: list[Any] = []
    for rank, x in enumerate(world.x):
        numbers = torch.arange(len(x) * SCALES).view(SCALES, len(x)).T + 1000 * rank
        dtype = torch.int32 if "packed" in content else torch.float32
        found.append((x.to(torch.float8_e4m3fn), numbers.to(dtype)))  # scales column by column
        assert len(x) < 2 or not found[-1][1].is_contiguous()
    return found


def check_rows(rank: Rank, world: World, got: Any, parts: list[Any], what: str) -> None:
    """All bits of received rows."""
    if not isinstance(parts[0], tuple):
        same(got, world.received(rank.rank, parts), what)
        return
    assert isinstance(got, tuple) and len(got) == 2
    same(got[0], world.received(rank.rank, [x for x, _ in parts]), what)
    same(got[1], world.received(rank.rank, [scales for _, scales in parts]), f"{what}: scales")


def check_dispatched(rank: Rank, world: World, result: Any, parts: list[Any], topk: bool) -> None:
    rows, ids, weights, counts, handle, _ = result
    check_rows(rank, world, rows, parts, "rows")
    assert counts == world.counts(rank.rank) and all(type(one) is int for one in counts)
    if topk:
        want = world.selections(rank.rank)
        same(ids, want[0], "ids")
        same(weights, want[1], "weights")
    else:
        assert ids is None and weights is None
    sources = [row.source for row in world.rows_of(rank.rank)]
    ends = [sum(one <= source for one in sources) for source in range(rank.size)]
    assert isinstance(handle, tuple) and handle[0].dtype is torch.int32
    assert handle[0].shape == (rank.size, rank.size)
    assert handle[0][:, rank.rank].tolist() == ends
    assert handle[-4].dtype is torch.int32 and handle[-4].tolist() == ends  # as between hosts


def grid(rank: Rank, content: str, topk: bool) -> None:
    """What upstream's own test of one host checks, but for times."""
    buffer, mine = buffer_of(rank), rank.rank
    for salt in range(2):
        world = world_of(rank, salt)
        check_layout(rank, buffer, world)
        parts = sent(world, content)
        for previous in (False, True):
            for finish in (False, True):
                options: dict[str, Any] = {"async_finish": finish}
                if previous:
                    options["previous_event"] = Buffer.capture()
                    options["allocate_on_comm_stream"] = finish
                _round(rank, buffer, world, parts, topk, options)
    assert mine == buffer.rank
    dist.barrier()


def _round(
    rank: Rank, buffer: Buffer, world: World, parts: list[Any], topk: bool, options: dict[str, Any]
) -> None:
    mine = rank.rank
    result = fresh(buffer, world, mine, parts[mine], topk, **options)
    _finish(result[-1], options)
    check_dispatched(rank, world, result, parts, topk)
    handle = result[4]
    again = buffer.dispatch(parts[mine], handle=handle, **options)
    _finish(again[-1], options)
    check_rows(rank, world, again[0], parts, "rows by a handle")
    assert again[1:5] == (None,) * 4
    answers = answers_of(world, 5)
    weights = result[2].clone() if topk else None
    out, home, event = buffer.combine(answers[mine], handle, weights, **options)
    _finish(event, options)
    same(out, world.combined(mine, answers), "combined")
    if not topk:
        assert home is None
        return
    # Each weight comes home from the rank of its expert.
    ids, given = world.topk_idx[mine], world.topk_weights[mine]
    same(home, torch.where(ids >= 0, given, 0.0), "weights that came home")


class _Filling:
    """Work that fills tensors, as of another stream."""

    def __init__(self, *filled: tuple[torch.Tensor, torch.Tensor]) -> None:
        self._filled = filled

    def finish(self) -> None:
        for tensor, values in self._filled:
            tensor.copy_(values)


def filled_by(*filled: tuple[torch.Tensor, torch.Tensor]) -> Event:
    """An event by which each tensor has its values."""
    return Event(_Filling(*filled))


def awaited(rank: Rank) -> None:
    """Nothing that a dispatch is given is read before its event."""
    buffer, mine = buffer_of(rank), rank.rank
    world = world_of(rank, 6)
    parts = sent(world, CONTENTS[2])
    given: dict[str, Any] = {
        "topk_idx": world.topk_idx[mine],
        "topk_weights": world.topk_weights[mine],
        **layout_of(buffer, world, mine),
    }
    del given["num_tokens_per_rdma_rank"]
    late = {name: torch.zeros_like(one) for name, one in given.items()}
    x = tuple(torch.zeros_like(one) for one in parts[mine])
    event = filled_by(
        *zip(x, parts[mine], strict=True), *((late[name], one) for name, one in given.items())
    )
    result = buffer.dispatch(x, **late, previous_event=EventOverlap(event), async_finish=True)
    check_dispatched(rank, world, result, parts, True)
    dist.barrier()


def _finish(event: EventOverlap, options: dict[str, Any]) -> None:
    assert isinstance(event, EventOverlap)
    if options["async_finish"]:
        assert isinstance(event.event, EventHandle)
        event.current_stream_wait()
    else:
        assert event.event is None


def shapes(rank: Rank) -> None:
    """No tokens on any rank, or on all but one; no token goes anywhere; all to one rank."""
    buffer, mine = buffer_of(rank), rank.rank
    last = rank.size - 1
    worlds = [
        world_of(rank, 1, tokens=[0] * rank.size),
        world_of(rank, 2, tokens=[0] * last + [9]),
        world_of(rank, 3, nothing=True),
        _to_one_rank(world_of(rank, 4), last),
        world_of(rank, 5, tokens=[200] + [1] * last),
    ]
    for number, world in enumerate(worlds):
        result = fresh(buffer, world, mine)
        check_dispatched(rank, world, result, world.x, True)
        answers = answers_of(world, number)
        bias = torch.full_like(world.x[mine], 0.5)
        out, _, _ = buffer.combine(answers[mine], result[4], bias=bias)
        same(out, world.combined(mine, answers, (bias,)), "combined")
        assert all(count % 8 == 0 for count in fresh(buffer, world, mine, expert_alignment=8)[3])
    dist.barrier()


def _to_one_rank(world: World, rank: int) -> World:
    only = range(rank * LOCAL_EXPERTS, (rank + 1) * LOCAL_EXPERTS)
    for ids in world.topk_idx:
        ids.remainder_(len(only)).add_(only.start)
    return world


def long_prompt(rank: Rank) -> None:
    """9000 tokens with 22 selections each on one rank, 3 on the others; H = 1024."""
    buffer, mine, hidden, topk = buffer_of(rank), rank.rank, 1024, 22
    experts = 16 * rank.size
    random, xs, ids = torch.Generator().manual_seed(rank.seed), [], []
    for r in range(rank.size):
        tokens = 9000 if r == 0 else 3
        xs.append(torch.randint(-8, 9, (tokens, hidden), generator=random).to(torch.bfloat16))
        ids.append(torch.rand(tokens, experts, generator=random).topk(topk).indices)
    weights = torch.ones(len(xs[mine]), topk)
    layout = buffer.get_dispatch_layout(ids[mine], experts)
    names = "num_tokens_per_rank", "num_tokens_per_expert", "is_token_in_rank"
    args = dict(zip(names, (layout[0], layout[2], layout[3]), strict=True))
    rows, _, _, counts, handle, _ = buffer.dispatch(
        xs[mine], topk_idx=ids[mine], topk_weights=weights, **args
    )
    goes = [(one // 16 == mine).any(1) for one in ids]
    same(rows, torch.cat([x[here] for x, here in zip(xs, goes, strict=True)]), "rows")
    mine_only = torch.cat(ids).flatten() - 16 * mine
    assert counts == [int((mine_only == expert).sum()) for expert in range(16)]
    out, _, _ = buffer.combine(rows, handle)
    num_ranks = sum((ids[mine] // 16 == r).any(1).int() for r in range(rank.size))
    same(out, (xs[mine].float() * num_ranks[:, None]).to(torch.bfloat16), "combined")


def alignment(rank: Rank) -> None:
    """The list is rounded up, and nothing else."""
    buffer, world = buffer_of(rank), world_of(rank, 2)
    for by in (1, 4, 128):
        result = fresh(buffer, world, rank.rank, expert_alignment=by)
        assert result[3] == world.counts(rank.rank, by)
        same(result[0], world.received(rank.rank, world.x), "rows")
    dist.barrier()


def own_word(rank: Rank) -> None:
    """Routing follows is_token_in_rank, counts follow num_tokens_per_expert."""
    buffer, mine = buffer_of(rank), rank.rank
    world = world_of(rank, 3)
    layout = layout_of(buffer, world, mine)
    everywhere = torch.ones(len(world.x[mine]), rank.size, dtype=torch.bool)
    layout["is_token_in_rank"] = everywhere
    layout["num_tokens_per_rank"] = everywhere.sum(0).int()
    layout["num_tokens_per_expert"] = torch.full((world.num_experts,), 7, dtype=torch.int32)
    for topk in (False, True):
        selected = {"topk_idx": world.topk_idx[mine], "topk_weights": world.topk_weights[mine]}
        result = buffer.dispatch(world.x[mine], **layout, **(selected if topk else {}))
        same(result[0], torch.cat(world.x), "rows")
        assert result[3] == [7 * rank.size] * LOCAL_EXPERTS
    local = torch.cat(world.topk_idx) - mine * LOCAL_EXPERTS
    here = (local >= 0) & (local < LOCAL_EXPERTS)
    same(result[1], torch.where(here, local, -1), "ids")
    # A token comes back from every rank, and so does its weight from wherever it was set.
    weights = torch.full_like(result[2], 0.25)
    out, home, _ = buffer.combine(result[0], result[4], weights)
    want = sum((world.x[mine].float() for _ in range(rank.size)), torch.zeros(()))
    same(out, want.to(torch.bfloat16).view_as(out), "combined")
    same(home, torch.full_like(world.topk_weights[mine], 0.25 * rank.size), "weights' sums")
    dist.barrier()


def worst_case(rank: Rank) -> None:
    """The same rows in a number of rows that the caller chose."""
    buffer, mine = buffer_of(rank), rank.rank
    world = world_of(rank, 1)
    for content in ("random", "float8 and float32 scales"):
        parts = sent(world, content)
        exact = fresh(buffer, world, mine, parts[mine])
        room = sum(len(x) for x in world.x) + 5
        result = fresh(buffer, world, mine, parts[mine], num_worst_tokens=room)
        n = len(exact[1])
        given = result[0] if content == "random" else result[0][0]
        assert result[3] == [] and len(given) == len(result[1]) == len(result[2]) == room
        pairs = [(result[1], exact[1]), (result[2], exact[2])]
        split = zip(result[0], exact[0], strict=True) if isinstance(exact[0], tuple) else ()
        pairs += split or [(result[0], exact[0])]
        for at, (whole, part) in enumerate(pairs):
            same(whole[:n].contiguous(), part, f"part {at}")
        assert (result[1][n:] == -1).all()
        again = buffer.dispatch(parts[mine], handle=result[4])[0]
        assert len(again if content == "random" else again[1]) == room
        answers = answers_of(world, 3)
        padded = torch.full((room, HIDDEN), float("nan"), dtype=torch.bfloat16)
        padded[:n] = answers[mine]
        out, home, _ = buffer.combine(padded, result[4], torch.ones(room, TOPK))
        same(out, world.combined(mine, answers), "combined")
        assert home is not None and home.shape == world.topk_weights[mine].shape
    dist.barrier()


def worst_case_too_small(rank: Rank) -> None:
    """The rank that gets too many rows says so; the others have theirs, and all go on."""
    buffer, mine = buffer_of(rank), rank.rank
    world = _to_one_rank(world_of(rank, 2), 0)
    room = len(world.rows_of(0)) - 1
    call = lambda: fresh(buffer, world, mine, num_worst_tokens=room)  # noqa: E731
    if mine == 0:
        text = expect(moewire.InvalidArgument, call)
        assert "num_worst_tokens" in text and str(room) in text and str(room + 1) in text
    else:
        assert len(call()[1]) == room
    check_dispatched(rank, world, fresh(buffer, world, mine), world.x, True)
    dist.barrier()


def handles(rank: Rank) -> None:
    """Many routings are alive, and used in any order, with rows of other sizes and types."""
    buffer, mine = buffer_of(rank), rank.rank
    worlds = [world_of(rank, salt) for salt in range(12)]
    made = [fresh(buffer, world, mine) for world in worlds]
    results = [(one[0], one[0].clone()) for one in made]
    order = random.Random(rank.seed)
    for step in range(60):
        at = order.randrange(len(worlds))
        world, handle = worlds[at], made[at][4]
        hidden = order.choice((16, HIDDEN, 200))
        if order.random() < 0.5:
            answers = answers_of(world, step, hidden)
            out, _, _ = buffer.combine(answers[mine], handle)
            same(out, world.combined(mine, answers), f"step {step}")
            continue
        kind = order.choice((torch.bfloat16, torch.float32, torch.int8))
        given = [x[:, :16].to(kind).repeat(1, hidden // 8) for x in world.x]
        rows = buffer.dispatch(given[mine], handle=handle)[0]
        same(rows, world.received(mine, given), f"step {step}")
        results.append((rows, rows.clone()))
    for rows, before in results:  # nothing has written to what was given out
        assert torch.equal(rows, before)
    dist.barrier()


def results_belong_to_the_caller(rank: Rank) -> None:
    """Writing to them changes nothing that comes later, also not through a handle."""
    buffer, mine = buffer_of(rank), rank.rank
    world = world_of(rank, 1)
    rows, ids, weights, counts, handle, _ = fresh(buffer, world, mine)
    for tensor in (rows, weights):
        tensor.fill_(float("nan"))
    ids.fill_(99)
    counts.clear()
    check_rows(rank, world, buffer.dispatch(world.x[mine], handle=handle)[0], world.x, "again")
    answers = answers_of(world, 1)
    ones = torch.ones(len(answers[mine]), TOPK)
    out, home, _ = buffer.combine(answers[mine], handle, ones)
    out.fill_(7)
    home.fill_(7)
    out, _, _ = buffer.combine(answers[mine], handle)
    same(out, world.combined(mine, answers), "combined again")
    check_dispatched(rank, world, fresh(buffer, world, mine), world.x, True)
    # Code that walks through tuples may make another one of the handle.
    out, _, _ = buffer.combine(answers[mine], tuple(handle))
    same(out, world.combined(mine, answers), "by a copy of the handle")
    dist.barrier()


def biases(rank: Rank) -> None:
    """None, one or two are added first."""
    buffer, mine = buffer_of(rank), rank.rank
    world = world_of(rank, 4)
    handle = fresh(buffer, world, mine)[4]
    for salt in range(5):
        answers = answers_of(world, salt)
        generator = torch.Generator().manual_seed(100 + salt)
        size = 2.0 ** torch.randint(-9, 9, (len(world.x[mine]), 1), generator=generator)
        two = [
            (torch.randn(world.x[mine].shape, generator=generator) * size).to(torch.bfloat16)
            for _ in range(2)
        ]
        for bias, added in ((None, []), (two[0], two[:1]), (tuple(two), two)):
            out, _, _ = buffer.combine(answers[mine], handle, bias=bias)
            same(out, world.combined(mine, answers, added), f"{len(added)} biases")
    dist.barrier()


def both_modes(rank: Rank) -> None:
    """One buffer: prompts by the normal mode, single tokens by the low-latency mode."""
    experts = LOCAL_EXPERTS * rank.size
    size = Buffer.get_low_latency_rdma_size_hint(MOST, LOW_HIDDEN, rank.size, experts)
    buffer, mine = buffer_of(rank, num_rdma_bytes=size, low_latency_mode=True), rank.rank
    for salt in range(4):
        world = world_of(rank, salt)
        result = fresh(buffer, world, mine)
        check_dispatched(rank, world, result, world.x, True)
        buffer.clean_low_latency_buffer(MOST, LOW_HIDDEN, experts)
        _low_latency(rank, buffer, salt, (world.x[mine], result[4]))
        answers = answers_of(world, salt)  # by a handle from before
        combined, _, _ = buffer.combine(answers[mine], result[4])
        same(combined, world.combined(mine, answers), "combined")
    dist.barrier()


def _low_latency(rank: Rank, buffer: Buffer, salt: int, prompt: tuple[Any, Any]) -> None:
    """Unchanged rows go and come back. They hold a slot: a prompt goes meanwhile on CUDA alone."""
    tokens = [MOST - r for r in range(rank.size)]
    world = world_of(rank, salt, tokens, LOW_HIDDEN)
    x, ids, weights = (one[rank.rank] for one in (world.x, world.topk_idx, world.topk_weights))
    rows, _, handle, _, _ = buffer.low_latency_dispatch(
        x, ids, MOST, world.num_experts, use_fp8=False
    )
    assert buffer.runtime is not None
    if buffer.runtime.drives:
        text = expect(moewire.BusyError, lambda: buffer.dispatch(prompt[0], handle=prompt[1]))
        assert "combine or release" in text
    else:
        buffer.dispatch(prompt[0], handle=prompt[1])
    out, _, _ = buffer.low_latency_combine(rows, ids, weights, handle)
    total = (weights * (ids >= 0)).sum(1, keepdim=True)
    assert torch.allclose(out.float(), x.float() * total, rtol=0.02, atol=0.02)


def tokens_per_host(num_ranks: int) -> list[int]:
    """Tokens per group of 8 ranks, of which there may be fewer in the last. Needs no buffer."""
    ids = torch.tensor([[0, 1], [7, 8], [num_ranks - 1, -1], [-1, -1]])
    per_host = _layout.layout_of(ids, num_ranks, num_ranks, HOST).num_tokens_per_rdma_rank
    assert per_host is not None and per_host.dtype is torch.int32
    found: list[int] = per_host.tolist()
    return found
