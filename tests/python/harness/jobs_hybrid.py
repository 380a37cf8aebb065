"""HybridEP's interface, against loops over all ranks' inputs in plain torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from moewire import deep_ep
from moewire.deep_ep.hybrid_ep_buffer import indices_to_map
from moewire.errors import PeerLostError

from .member import Rank

HIDDEN, LOCAL, SCALES = 128, 3, 2


@dataclass
class Part:
    """One rank's tokens. Probabilities are 0 where a token has not selected an expert."""

    x: torch.Tensor  # bf16 [T, H], whole numbers
    chosen: torch.Tensor  # bool [T, E]
    probs: torch.Tensor  # float32 [T, E]


@dataclass
class World:
    rank: int
    parts: list[Part]

    @property
    def mine(self) -> Part:
        return self.parts[self.rank]


def world_of(rank: Rank, seed: int) -> World:
    """Ranks differ in T and in the most experts of a token; one has no tokens, one selects none."""
    parts, experts = [], LOCAL * rank.size
    for source in range(rank.size):
        seeded = torch.Generator().manual_seed(rank.seed + 97 * seed + source)
        tokens = 0 if (source + seed) % 4 == 1 else 3 + 9 * source
        most = 0 if (source + seed) % 4 == 2 else min(experts, source + 2)
        order = torch.rand((tokens, experts), generator=seeded).argsort(1)
        counts = torch.randint(0, most + 1, (tokens, 1), generator=seeded)
        chosen = order < counts
        probs = torch.randint(1, 9, (tokens, experts), generator=seeded) / 8 * chosen
        x = torch.randint(-8, 9, (tokens, HIDDEN), generator=seeded).bfloat16()
        parts.append(Part(x, chosen, probs))
    return World(rank.rank, parts)


def came(world: World) -> list[list[tuple[int, int]]]:
    """Of each local expert, in order: source rank and token."""
    return [
        [
            (source, token)
            for source, part in enumerate(world.parts)
            for token in range(len(part.x))
            if part.chosen[token, world.rank * LOCAL + local]
        ]
        for local in range(LOCAL)
    ]


def expanded(world: World, values: str, padding: int) -> torch.Tensor:
    """Rows or probabilities as they must come, zeros in the gaps."""
    blocks = []
    for local, rows in enumerate(came(world)):
        expert = world.rank * LOCAL + local
        block = []
        for source, token in rows:
            part = world.parts[source]
            block.append(part.probs[token, expert] if values == "probs" else part.x[token])
        gap = -len(rows) % padding
        like = torch.zeros(()) if values == "probs" else torch.zeros(HIDDEN).bfloat16()
        blocks += [*block, *[like] * gap]
    empty = torch.empty((0,)) if values == "probs" else torch.empty((0, HIDDEN)).bfloat16()
    return torch.stack(blocks) if blocks else empty


def buffer_of(rank: Rank) -> deep_ep.HybridEPBuffer:
    group = dist.group.WORLD if dist.is_initialized() else rank.group()
    return deep_ep.HybridEPBuffer(group, HIDDEN, 4, LOCAL, num_sms_dispatch_api=16)


def maps(rank: Rank) -> None:
    """Routing maps; a world's handles are used while those of others are made."""
    buffer = buffer_of(rank)
    held = []
    for seed, padding in ((1, None), (2, 1), (3, 8), (4, 8)):
        world = world_of(rank, seed)
        mine = world.mine
        got = buffer.dispatch_with_permute(
            hidden=mine.x, routing_map=mine.chosen, probs=mine.probs, pad_multiple=padding
        )
        held.append((world, padding or 1, got))
    for world, padding, got in reversed(held):
        _check(world, padding, got)
        _back(buffer, world, padding, got)
        _again(buffer, world, padding, got)
    config = buffer.configurer.buffer_config
    assert config.max_num_of_tokens_per_rank >= max(len(world.mine.x) for world, _, _ in held)


def _check(world: World, padding: int, got: Any) -> None:
    rows, probs, scales, per_expert, handle = got
    assert torch.equal(rows, expanded(world, "x", padding))
    assert torch.equal(probs, expanded(world, "probs", padding))
    assert scales is None and per_expert.dtype == torch.int64
    assert per_expert.tolist() == [-(-len(r) // padding) * padding for r in came(world)]
    assert handle[-1].tolist() == [0]


def _back(buffer: deep_ep.HybridEPBuffer, world: World, padding: int, got: Any) -> None:
    """Each expert multiplies by its number + 1; twice as much in probabilities comes back."""
    rows, probs, _, per_expert, handle = got
    numbers = torch.arange(world.rank * LOCAL, (world.rank + 1) * LOCAL) + 1
    scale = numbers.repeat_interleave(per_expert.to(numbers.device))
    outputs = (rows.float() * scale[:, None]).bfloat16()
    out, home = buffer.combine_with_unpermute(
        hidden=outputs, probs=probs * 2, handle=handle, pad_multiple=padding
    )
    assert torch.equal(home, world.mine.probs * 2)
    mine, size = world.mine, len(world.parts)
    total = torch.zeros(mine.x.shape)
    for owner in range(size):  # a rank adds up its own first, and rounds
        experts = torch.arange(owner * LOCAL, (owner + 1) * LOCAL)
        factor = (mine.chosen[:, experts] * (experts + 1)).sum(1, keepdim=True)
        total += (mine.x.float() * factor).bfloat16().float()
    assert torch.equal(out, total.bfloat16())
    plain, none = buffer.combine_with_unpermute(hidden=outputs, handle=handle)
    assert none is None and torch.equal(plain, out)


def _again(buffer: deep_ep.HybridEPBuffer, world: World, padding: int, got: Any) -> None:
    """By the handle: other rows and probabilities, more room than is needed."""
    mine, handle = world.mine, got[4]
    least = len(got[0])
    doubled = Part(mine.x * 2, mine.chosen, mine.probs / 2)
    rows, probs, _, per_expert, same = buffer.dispatch_with_permute(
        hidden=doubled.x, probs=doubled.probs, handle=handle, num_permuted_tokens=least + 5
    )
    assert same == handle and torch.equal(per_expert, got[3])
    assert torch.equal(rows[:least], got[0] * 2) and not rows[least:].any()
    assert torch.equal(probs[:least], got[1] / 2) and not probs[least:].any()
    assert len(rows) == len(probs) == least + 5
    out, _ = buffer.combine_with_unpermute(hidden=rows, handle=handle)
    assert torch.equal(out, buffer.combine_with_unpermute(hidden=rows[:least], handle=handle)[0])


def indices(rank: Rank) -> None:
    """Lists of ids, with weights of a list or of a table; rows of one byte with scales."""
    buffer = buffer_of(rank)
    world = world_of(rank, 3)
    mine, experts = world.mine, LOCAL * rank.size
    ids = torch.full((len(mine.x), experts), -1)
    weights = torch.zeros(ids.shape)
    for token in range(len(mine.x)):
        own = mine.chosen[token].nonzero().view(-1).flip(0)
        ids[token, : len(own)], weights[token, : len(own)] = own, mine.probs[token, own]
    chosen, probs = indices_to_map(ids, weights, len(ids), experts)
    assert torch.equal(chosen, mine.chosen) and torch.equal(probs, mine.probs)
    # More experts in one call change nothing for the next ones, which do not say how many.
    buffer.dispatch_with_permute(hidden=mine.x, topk_idx=ids, num_of_experts=2 * experts)
    for given in ({"topk_weights": weights}, {"probs": mine.probs}):
        got = buffer.dispatch_with_permute(hidden=mine.x, topk_idx=ids, pad_multiple=4, **given)
        _check(world, 4, got)
        _back(buffer, world, 4, got)
    values = mine.x.to(torch.float8_e4m3fn)
    scales = mine.x[:, :SCALES].float().T.contiguous().T
    rows, none, came_scales, _, _ = buffer.dispatch_with_permute(
        hidden=values, scaling_factor=scales, routing_map=mine.chosen, num_of_experts=experts
    )
    want = expanded(world, "x", 1)
    assert none is None and torch.equal(rows.bfloat16(), want)
    assert torch.equal(came_scales, want[:, :SCALES].float())


def late_rank(rank: Rank) -> list[str]:
    """One rank does not come to a dispatch. New buffers work, though the old ones are held."""
    old, texts = buffer_of(rank), []
    other = deep_ep.ElasticBuffer(dist.group.WORLD, num_max_tokens_per_rank=1)
    assert other._shared() is old._core.buffer
    old.timeout_us = 1_000_000
    mine = world_of(rank, 1).mine
    if rank.rank != rank.size - 1:
        try:
            old.dispatch_with_permute(hidden=mine.x, routing_map=mine.chosen)
        except PeerLostError as error:
            texts.append(str(error))
    dist.barrier()
    new = buffer_of(rank)
    assert new._core.buffer is not old._core.buffer
    for seed in (1, 2):
        world = world_of(rank, seed)
        got = new.dispatch_with_permute(
            hidden=world.mine.x, routing_map=world.mine.chosen, probs=world.mine.probs
        )
        _check(world, 1, got)
    return texts


def refusals(rank: Rank) -> list[str]:
    """Nothing has happened after each: the next call is right."""
    buffer = buffer_of(rank)
    world = world_of(rank, 3)
    mine = world.mine

    def dispatch(**other: Any) -> Any:
        given = {"hidden": mine.x, "routing_map": mine.chosen, "probs": mine.probs, **other}
        return buffer.dispatch_with_permute(**given)

    got = dispatch()
    rows, _, _, _, handle = got
    ids = torch.zeros((len(mine.x), 1), dtype=torch.int64)
    calls = (
        lambda: dispatch(routing_map=None),
        lambda: dispatch(routing_map=mine.chosen[:, 1:]),
        lambda: dispatch(routing_map=mine.chosen.int()),
        lambda: dispatch(probs=mine.probs[:, 1:]),
        lambda: dispatch(num_of_experts=rank.size * LOCAL + 1),
        lambda: dispatch(pad_multiple=-1),
        lambda: dispatch(handle=handle),
        lambda: dispatch(handle=handle, routing_map=None, pad_multiple=2),
        lambda: dispatch(handle=handle, routing_map=None, hidden=torch.zeros(99, HIDDEN)),
        lambda: dispatch(handle=(1, 2, 3, 4), routing_map=None),
        lambda: dispatch(scaling_factor=torch.zeros(len(mine.x), 2)),
        lambda: dispatch(
            hidden=mine.x.to(torch.float8_e4m3fn),
            scaling_factor=torch.zeros(len(mine.x), 2, dtype=torch.float16),
        ),
        lambda: dispatch(num_permuted_tokens=-1),
        lambda: dispatch(num_permuted_tokens=torch.tensor(1e6 + 0.5)),
        lambda: dispatch(routing_map=None, topk_idx=ids, topk_weights=torch.ones(ids.shape)),
        lambda: dispatch(num_of_experts_per_rank=LOCAL + 1, num_of_experts=rank.size * LOCAL),
        lambda: dispatch(handle=handle, routing_map=None, num_of_experts_per_rank=LOCAL + 1),
        lambda: dispatch(hidden=mine.x.float().to_sparse()),
        lambda: buffer.combine_with_unpermute(hidden=rows[:, :4], handle=handle),
        lambda: buffer.combine_with_unpermute(hidden=rows.view(-1), handle=handle),
        lambda: buffer.combine_with_unpermute(hidden=rows.float(), handle=handle),
        lambda: buffer.combine_with_unpermute(hidden=rows[:0], handle=handle),
        lambda: buffer.combine_with_unpermute(hidden=rows, probs=rows.float(), handle=handle),
        lambda: buffer.combine_with_unpermute(hidden=rows, handle=handle, pad_multiple=3),
        lambda: buffer.dispatch,
        lambda: buffer.combine,
        lambda: deep_ep.HybridEPBuffer(dist.group.WORLD, 0, 1, 1),
    )
    said = [_said(call) for call in calls]
    _check(world, 1, dispatch())
    said.append(_said(lambda: dispatch(num_permuted_tokens=len(rows) - 1)) if len(rows) else "")
    if not len(rows):
        dispatch()
    _check(world, 1, dispatch())
    row, many = torch.zeros(1, HIDDEN).bfloat16(), 66 * rank.size
    chosen = torch.ones(1, many).bool()
    said.append(
        _said(
            lambda: buffer.dispatch_with_permute(
                hidden=row, routing_map=chosen, num_of_experts=many
            )
        )
    )
    return said


def _said(call: Any) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"
