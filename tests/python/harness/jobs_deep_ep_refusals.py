"""What DeepEP's normal mode refuses, by name: bad arguments, and ranks that do not do the same.

After bad arguments the buffer stays usable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import moewire
from moewire.deep_ep import Buffer

from .jobs_deep_ep_clients import refused
from .jobs_deep_ep_normal import buffer_of, check_dispatched, fresh, layout_of
from .jobs_input import expect
from .member import Rank
from .normal_world import HIDDEN, LOCAL_EXPERTS, TOPK, World, answers_of, world_of

T = 6
_x = torch.zeros(T, HIDDEN, dtype=torch.bfloat16)
_fp8 = _x.to(torch.float8_e4m3fn)
_ids = torch.zeros(T, TOPK, dtype=torch.int64)
_EVENT = ("allocate_on_comm_stream", "previous_event", "async_finish")
# Changed arguments of a right call -> words of the error.
LAYOUT: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "ids of int32": ({"topk_idx": _ids.int()}, ("topk_idx", "int32", "int64")),
    "ids of one dimension": ({"topk_idx": _ids[0]}, ("topk_idx", "shape [4]")),
    "no ids": ({"topk_idx": None}, ("topk_idx", "NoneType")),
    "an id too large": ({"topk_idx": _ids + 1000}, ("topk_idx", "1000", "-1 to")),
    "an id too small": ({"topk_idx": _ids - 2}, ("topk_idx", "-2", "-1 to")),
    "too many selections": ({"topk_idx": _ids.repeat(1, 17)}, ("topk_idx", "68", "64")),
    "experts": ({"num_experts": 7}, ("num_experts", "7", "multiple")),
    "comm stream": ({"allocate_on_comm_stream": True}, _EVENT),
}
DISPATCH: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "no x": ({"x": None}, ("x", "NoneType")),
    "x of one dimension": ({"x": _x[0]}, ("x", "shape [64]")),
    "x of columns": ({"x": torch.zeros(HIDDEN, T, dtype=torch.bfloat16).T}, ("x", "contiguous")),
    "rows of 12 bytes": ({"x": _x[:, :6].clone()}, ("x", "12 bytes", "16")),
    "rows of nothing": ({"x": _x[:, :0].clone()}, ("x", "0 bytes", "16")),
    "other tokens": ({"x": _x[:2]}, ("is_token_in_rank", "[6, 2]", "[2, 2]")),
    "three in x": ({"x": (_x, _x, _x)}, ("x", "3 tensors")),
    "scales of bf16 rows": ({"x": (_x, torch.ones(T, 1))}, ("x[0]", "bfloat16", "1 byte")),
    "scales of float16": ({"x": (_fp8, torch.ones(T, 1).half())}, ("x[1]", "float16", "int32")),
    "scales of too few": ({"x": (_fp8, torch.ones(2, 1))}, ("x[1]", "[2, 1]", "[6, any]")),
    "scales of one dimension": ({"x": (_fp8, torch.ones(T))}, ("x[1]", "[6]", "[6, any]")),
    "no scales": ({"x": (_fp8, None)}, ("x[1]", "NoneType")),
    "scales of nothing": ({"x": (_fp8, torch.ones(T, 0))}, ("x[1]", "0")),
    "ids alone": ({"topk_weights": None}, ("topk_idx", "topk_weights", "both or neither")),
    "weights alone": ({"topk_idx": None}, ("topk_idx", "topk_weights", "both or neither")),
    "weights of bf16": (
        {"topk_weights": torch.ones(T, TOPK).bfloat16()},
        ("topk_weights", "bfloat16", "float32"),
    ),
    "an id too large": ({"topk_idx": _ids + 99}, ("topk_idx", "99", "-1 to 5")),
    "no layout": ({"is_token_in_rank": None}, ("is_token_in_rank", "NoneType")),
    "no counts of ranks": ({"num_tokens_per_rank": None}, ("num_tokens_per_rank", "NoneType")),
    "no counts": ({"num_tokens_per_expert": None}, ("num_tokens_per_expert", "NoneType")),
    "other counts of ranks": (
        {"num_tokens_per_rank": torch.tensor([T, 2], dtype=torch.int32)},
        ("num_tokens_per_rank", "[6, 2]", "is_token_in_rank"),
    ),
    "counts below zero": (
        {"num_tokens_per_expert": torch.full((6,), -1, dtype=torch.int32)},
        ("num_tokens_per_expert", "-1"),
    ),
    "counts of 7 experts": (
        {"num_tokens_per_expert": torch.zeros(7, dtype=torch.int32)},
        ("num_experts", "7", "multiple"),
    ),
    "alignment": ({"expert_alignment": 0}, ("expert_alignment", "0")),
    "worst below zero": ({"num_worst_tokens": -1}, ("num_worst_tokens", "-1")),
    "worst without ids": (
        {"num_worst_tokens": 40, "topk_idx": None, "topk_weights": None},
        ("num_worst_tokens", "40", "topk_idx"),
    ),
    "no event": ({"previous_event": 7}, ("previous_event", "int", "EventOverlap")),
    "comm stream": ({"allocate_on_comm_stream": True}, _EVENT),
    "a handle of something": ({"handle": (1, 2)}, ("topk_idx", "topk_weights", "handle")),
}
CACHED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "a handle of something": ({"handle": (1, 2, 3)}, ("handle", "tuple", "dispatch")),
    "no handle": ({"handle": 5}, ("handle", "int", "dispatch")),
    "other tokens": ({"x": _x[:2]}, ("x", "2 tokens", "6")),
    "other worst": ({"num_worst_tokens": 3}, ("num_worst_tokens", "3")),
}
COMBINE: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "float32": ({"x": torch.zeros(12, HIDDEN)}, ("x", "float32", "bfloat16")),
    "other rows": ({"x": _x[:2]}, ("x", "[2, 64]", "[12, any]")),
    "rows of 12 bytes": ({"x": torch.zeros(12, 6).bfloat16()}, ("6", "8")),
    "weights of other rows": (
        {"topk_weights": torch.ones(2, TOPK)},
        ("topk_weights", "[2, 4]", "[12, any]"),
    ),
    "three biases": ({"bias": (_x, _x, _x)}, ("bias", "3 of them", "2")),
    "a bias of float32": ({"bias": _x.float()}, ("bias", "float32", "bfloat16")),
    "weights of other selections": (
        {"topk_weights": torch.ones(12, 2)},
        ("topk_weights", "[12, 2]", "[12, 4]"),
    ),
    "a bias of other tokens": ({"bias": _x[:2]}, ("bias", "[2, 64]", "[6, 64]")),
    "no handle": ({"handle": None}, ("handle", "NoneType")),
}


def _world(rank: Rank) -> Any:
    world = world_of(rank, 0, tokens=[T] * rank.size)
    for ids in world.topk_idx:
        ids.copy_(torch.arange(TOPK) % LOCAL_EXPERTS * rank.size)  # to both ranks
    return world


def bad_arguments(rank: Rank) -> None:
    buffer, mine, world = buffer_of(rank), rank.rank, _world(rank)
    right = layout_of(buffer, world, mine)
    right |= {"topk_idx": world.topk_idx[mine], "topk_weights": world.topk_weights[mine]}
    layout = {"topk_idx": world.topk_idx[mine], "num_experts": world.num_experts}
    _each(LAYOUT, buffer.get_dispatch_layout, layout)
    _each(DISPATCH, buffer.dispatch, {"x": world.x[mine], **right})
    result = buffer.dispatch(world.x[mine], **right)
    handle = result[4]
    assert handle is not None and len(result[1]) == 12
    _each(CACHED, buffer.dispatch, {"x": world.x[mine], "handle": handle})
    _each(COMBINE, buffer.combine, {"x": result[0], "handle": handle})
    without = fresh(buffer, world, mine, topk=False)[4]
    weights = torch.ones(12, TOPK)
    refused(
        lambda: buffer.combine(result[0], without, weights), ("topk_weights", "without topk_idx")
    )
    check_dispatched(rank, world, fresh(buffer, world, mine), world.x, True)
    dist.barrier()


def _each(
    table: dict[str, tuple[dict[str, Any], tuple[str, ...]]],
    call: Callable[..., Any],
    right: dict[str, Any],
) -> None:
    for name, (changed, words) in table.items():
        print(name)
        refused(lambda changed=changed: call(**{**right, **changed}), words)


def closed(rank: Rank) -> None:
    """After destroy() calls say so; a handle may be dropped later."""
    buffer, mine, world = buffer_of(rank, explicitly_destroy=True), rank.rank, _world(rank)
    result = fresh(buffer, world, mine)
    dist.barrier()
    buffer.destroy()
    refused(lambda: buffer.combine(result[0], result[4]), ("closed",))
    refused(lambda: fresh(buffer, world, mine), ("closed",))


def another_buffers_handle(rank: Rank) -> None:
    """A routing belongs to the buffer that made it."""
    one, other = Buffer(rank.group()), Buffer(dist.group.WORLD)
    world = _world(rank)
    handle = fresh(one, world, rank.rank)[4]
    refused(lambda: other.dispatch(world.x[rank.rank], handle=handle), ("another Buffer",))
    dist.barrier()


def lost(rank: Rank) -> str:
    """The last rank does not come: the others are told which, not later than asked for."""
    buffer, mine, world = buffer_of(rank), rank.rank, _world(rank)
    handle = fresh(buffer, world, mine)[4]
    if mine == rank.size - 1:
        rank.meet("end")
        return ""
    buffer.timeout_us = 2_000_000
    try:
        buffer.dispatch(world.x[mine], handle=handle)
    except moewire.MoewireError as error:
        return str(error)
    finally:
        rank.meet("end")
    return "nothing"


def disagree(rank: Rank, how: str) -> str:
    """Ranks make different calls: an error on each, soon; and how it names the difference."""
    buffer, mine = buffer_of(rank), rank.rank
    buffer.timeout_us = 20_000_000
    world = world_of(rank, 1, tokens=[6] * rank.size)
    handle = fresh(buffer, world, mine)[4]
    odd = mine == rank.size - 1
    calls = {
        "topk": lambda: fresh(buffer, world, mine, topk=not odd),
        "hidden": lambda: fresh(buffer, world, mine, world.x[mine][:, : 32 if odd else 64].clone()),
        "scales": lambda: fresh(buffer, world, mine, _quantised(world.x[mine], odd)),
        "weights": lambda: buffer.combine(
            answers_of(world, 1)[mine], handle, None if odd else _ones(world, mine)
        ),
        "handle": lambda: (
            buffer.dispatch(world.x[mine], handle=handle) if odd else fresh(buffer, world, mine)
        ),
        "call": lambda: (
            buffer.combine(answers_of(world, 1)[mine], handle)
            if odd
            else buffer.dispatch(world.x[mine], handle=handle)
        ),
    }
    text = expect(moewire.MoewireError, calls[how])
    dist.barrier()
    return text


def _ones(world: World, mine: int) -> torch.Tensor:
    return torch.ones(len(world.rows_of(mine)), TOPK)


def _quantised(x: torch.Tensor, odd: bool) -> Any:
    whole = x.to(torch.float8_e4m3fn)
    return whole if odd else (whole, torch.ones(len(x), 2))
