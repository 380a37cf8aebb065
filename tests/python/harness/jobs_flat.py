"""Jobs about flat operations."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

import moewire

from . import cases, flat, verify
from .cases import Case
from .freezing import freeze, while_frozen
from .jobs_input import case_for, expect
from .jobs_oracle import CALLS
from .member import Rank


def size_for(todo: list[Case]) -> int:
    """Room for all cases, flat and packed."""
    extras = [0] * 4
    for kind in flat.EXTRAS:
        for at, (dtype, shape) in enumerate(kind):
            extras[at] = max(extras[at], int(np.prod(shape, initial=1)) * dtype.itemsize)
    hint = moewire.Buffer.get_flat_buffer_size_hint
    packed = moewire.Buffer.get_ep_buffer_size_hint
    return max(
        max(
            hint(
                c.num_max,
                c.hidden,
                c.num_ranks,
                c.num_topk,
                extra_row_bytes=extras,
                fp32_outputs=True,
            ),
            packed(c.num_max, c.hidden, c.num_ranks, c.num_experts, fp32_outputs=True),
        )
        for c in todo
    )


def random_cases(rank: Rank, count: int, copy_outputs: bool = False) -> int:
    """Every way to call, over random cases, some of them packed; the number of flat combines."""
    todo = [cases.make(rank.seed, 5000 + number, rank.size) for number in range(count)]
    checked = 0
    with rank.buffer(size_for(todo), copy_outputs=copy_outputs) as buffer:
        for number, case in enumerate(todo):
            print(case)
            if number % 5 == 4:
                verify.combine(buffer, verify.dispatch(buffer, case, rank.rank))
            else:
                checked += _one_case(rank, buffer, case, number)
    return checked


def _one_case(rank: Rank, buffer: moewire.Buffer, case: Case, number: int) -> int:
    common = rank.random(number)
    own = np.random.default_rng([rank.seed, number, rank.rank, 6])
    if common.random() < 0.3:
        time.sleep(float(own.random()) * 0.003)
    how = CALLS[int(own.integers(len(CALLS)))]
    kind = int(common.integers(len(flat.EXTRAS)))
    received = flat.dispatch(buffer, case, rank.rank, kind, **how)
    if own.random() < 0.5:  # asking for results finishes the receive phase, too
        received.finish()
    received.check()
    times = int(common.integers(1, 4))
    for _ in range(times):
        flat.combine(
            buffer,
            received,
            zero_copy=bool(own.integers(2)),
            own_out=bool(own.integers(2)),
            **CALLS[int(own.integers(len(CALLS)))],
        )
    if common.random() < 0.5:
        handle = received.got.handle
        again = flat.dispatch(buffer, case, rank.rank, kind, handle=handle)
        flat.combine(buffer, again)
        times += 1
    return times


def _arguments(case: Case, rank: int) -> dict[str, Any]:
    return {
        "x": verify.bf16(case.x[rank]),
        "topk_idx": torch.from_numpy(case.topk[rank].copy()),
        "topk_weights": torch.from_numpy(case.weights[rank].copy()),
        "num_max_dispatch_tokens_per_rank": case.num_max,
        "num_experts": case.num_experts,
    }


def _along(*shape: int, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    return {"extra": (torch.zeros(shape, dtype=dtype),)}


# Name -> (arguments that are wrong, words that the error must have).
DISPATCH: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "no topk_idx": ({"topk_idx": None}, ("topk_idx", "NoneType", "torch.Tensor")),
    "no weights": ({"topk_weights": None}, ("topk_weights", "NoneType", "torch.Tensor")),
    "weights dtype": (
        {"topk_weights": torch.zeros((4, 2), dtype=torch.float64)},
        ("topk_weights", "float64", "float32"),
    ),
    "weights shape": ({"topk_weights": torch.zeros((4, 3))}, ("topk_weights", "[4, 3]", "[4, 2]")),
    "five extras": ({"extra": [torch.zeros(4)] * 5}, ("extra", "5", "at most 4")),
    "extra rows": (_along(3, 2), ("extra[0]", "[3, 2]", "[4, 2]")),
    "extra scalar": (_along(), ("extra[0]", "[]", "[4, ...]")),
    "extra empty": (_along(4, 0), ("extra[0]", "0 given", "1 to 65535")),
    "extra wide": (_along(4, 1 << 14), ("extra[0]", "65536 given", "65535")),
    "extra list": ({"extra": ([0] * 4,)}, ("extra[0]", "list", "torch.Tensor")),
    "extra stride": (
        {"extra": (torch.zeros(2, 4).t(),)},
        ("extra[0]", "contiguous"),
    ),
    "M no int": ({"num_max_dispatch_tokens_per_rank": 8.0}, ("num_max_dispatch", "float")),
    "E": ({"num_experts": 3}, ("num_experts", "3", "multiple")),
    "expert": ({"topk_idx": torch.full((4, 2), 99)}, ("topk_idx", "99")),
    "M beyond the buffer": ({"num_max_dispatch_tokens_per_rank": 1 << 22}, ("bytes per slot",)),
    "hook and event": (
        {"return_recv_hook": True, "async_finish": True},
        ("async_finish", "return_recv_hook"),
    ),
    "no handle": ({"handle": 7}, ("handle", "int", "dispatch_flat")),
}


def wrong_calls(rank: Rank) -> None:
    """Each wrong argument is named, and consumes nothing."""
    case = case_for(rank)
    with rank.buffer() as buffer:
        for name, (wrong, words) in DISPATCH.items():
            if rank.rank == 0:
                arguments = {**_arguments(case, 0), **wrong}
                text = expect(moewire.InvalidArgument, partial(buffer.dispatch_flat, **arguments))
                assert all(word in text for word in words), f"{name}: {text}"
            flat.combine(buffer, flat.dispatch(buffer, case, rank.rank))
        packed = verify.dispatch(buffer, case, rank.rank)
        got = flat.dispatch(buffer, case, rank.rank)
        _wrong_combines(buffer, got, packed)
        _wrong_reuse(buffer, case, rank.rank, got.got.handle)
        flat.combine(buffer, got)
        verify.combine(buffer, packed)
        verify.combine(buffer, verify.dispatch(buffer, case, rank.rank))


def _wrong_combines(buffer: moewire.Buffer, got: flat.Received, packed: verify.Received) -> None:
    y, handle = got.outputs(), got.got.handle
    wrong: dict[str, Callable[[], object]] = {
        "dispatch_flat": lambda: buffer.combine_flat(y, packed.handle),
        "a FlatHandle": lambda: buffer.combine(y, y, y, None, -1, handle),
        "y: shape": lambda: buffer.combine_flat(y[:-1], handle),
        "y: dtype torch.float32": lambda: buffer.combine_flat(y.float(), handle),
        "zero_copy": lambda: buffer.combine_flat(y, handle, zero_copy=True),
        "out: shape": lambda: buffer.combine_flat(y, handle, out=y[:1]),
        "timeout_us": lambda: buffer.combine_flat(y, handle, timeout_us=-2),
    }
    for word, call in wrong.items():
        assert word in expect(moewire.InvalidArgument, call), word


def _wrong_reuse(buffer: moewire.Buffer, case: Case, rank: int, handle: moewire.FlatHandle) -> None:
    right = _arguments(case, rank)
    again = {**right, "topk_idx": None, "topk_weights": None, "handle": handle}
    for name, value, word in (
        ("topk_idx", right["topk_idx"], "None with a handle"),
        ("num_experts", 2 * case.num_experts, "num_experts"),
        ("x", right["x"][:2], "x: shape"),
    ):
        call = partial(buffer.dispatch_flat, **{**again, name: value})
        assert word in expect(moewire.InvalidArgument, call), name


def disagreement(rank: Rank, what: str) -> str:
    """Ranks that do not agree are told so, and go on."""
    case = case_for(rank)
    changes: dict[str, dict[str, Any]] = {
        "K": {
            "topk_idx": torch.zeros((4, 3), dtype=torch.int64),
            "topk_weights": torch.zeros(4, 3),
        },
        "extra": {"extra": (torch.zeros(4, 3),)},
        "outputs": {"fp32_outputs": True},
    }
    with rank.buffer(size_for([case])) as buffer:
        arguments = {**_arguments(case, rank.rank), **(changes.get(what, {}) if rank.rank else {})}
        if what == "form" and rank.rank:
            x, topk = arguments["x"], arguments["topk_idx"]
            call = partial(
                buffer.dispatch, x, topk, None, case.num_max, case.num_experts, -1, False
            )
        else:
            call = partial(buffer.dispatch_flat, **arguments)
        text = expect(moewire.PeerMismatchError, call)
        flat.combine(buffer, flat.dispatch(buffer, case, rank.rank))
    return text


def life_of_results(rank: Rank) -> None:
    """Handles, hooks that are dropped, gradients, and what outlives what."""
    case = case_for(rank)
    with rank.buffer() as buffer:
        arguments = _arguments(case, rank.rank)
        with buffer.dispatch_flat(**arguments).handle as handle:
            assert handle.num_recv_tokens == len(flat.rows_for(case, rank.rank))
        expect(moewire.StaleHandleError, lambda: buffer.combine_flat(_rows(case, rank), handle))
        again = flat.dispatch(buffer, case, rank.rank, handle=handle)  # its routing is still known
        flat.combine(buffer, again)
        dropped = buffer.dispatch_flat(**arguments, return_recv_hook=True)
        del dropped  # cancelled: no call has asked for it
        gc.collect()
        learning = {**arguments, "x": arguments["x"].requires_grad_()}
        kept = buffer.dispatch_flat(**learning)
        rows = kept.recv_x
        assert isinstance(rows, torch.Tensor)
        before = rows.clone()
        kept.handle.release()
        for number in range(4):
            flat.combine(buffer, flat.dispatch(buffer, case_for(rank, number), rank.rank))
        assert torch.equal(rows, before), "an ordinary tensor, for autograd's sake"
        assert not moewire.Buffer.get_flat_buffer_size_hint(1, 8, 1, 1) % (2 << 20)


def _rows(case: Case, rank: Rank) -> torch.Tensor:
    shape = (len(flat.rows_for(case, rank.rank)), case.hidden)
    return torch.zeros(shape, dtype=torch.bfloat16)


def go_on(buffer: moewire.Buffer, rank: Rank, timeout_us: int, lost: set[int]) -> None:
    """A flat exchange in which some ranks are missing."""
    case, mask = case_for(rank), torch.ones(rank.size, dtype=torch.int32)
    full = case.topk[rank.rank].copy()
    arguments = _arguments(case, rank.rank)
    got = buffer.dispatch_flat(**arguments, active_ranks=mask, timeout_us=timeout_us)
    assert [r for r in range(rank.size) if not mask[r]] == sorted(lost), (mask, lost)
    for source in lost:
        case.topk[source][:] = -1  # it has sent nothing that counts
    received = flat.Received(case, rank.rank, 0, got)
    received.check()
    out, _, _ = buffer.combine_flat(
        received.outputs(), got.handle, active_ranks=mask, timeout_us=timeout_us
    )
    case.topk[rank.rank] = full
    want = flat.combined(case, rank.rank, frozenset(lost))
    verify.same(verify.bits(out), want, "combine without the lost ranks")


def killed_in(rank: Rank, where: str) -> None:
    """Rank 1 is killed before a flat dispatch, or between it and its combine."""
    buffer = rank.buffer()
    case = case_for(rank)
    flat.combine(buffer, flat.dispatch(buffer, case, rank.rank))
    rank.meet("whole")  # what is sent dies with its sender until it has come
    if where == "dispatch":
        if rank.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        go_on(buffer, rank, -1, {1})
    else:
        received = flat.dispatch(buffer, case, rank.rank)
        rank.meet("received")
        if rank.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        mask = torch.ones(rank.size, dtype=torch.int32)
        y = received.outputs()
        out, _, _ = buffer.combine_flat(y, received.got.handle, active_ranks=mask)
        # A rank that has no rows there may be done before it hears of the loss.
        experts = range(case.num_local, 2 * case.num_local)
        needed = bool(np.isin(case.topk[rank.rank], experts).any())
        assert mask.tolist() in ([1, 0, 1], [1, int(not needed), 1]), (mask, needed)
        want = flat.combined(case, rank.rank, frozenset({1}))
        verify.same(verify.bits(out), want, "combine without the killed rank")
    go_on(buffer, rank, -1, {1})
    rank.meet_some("end", [0, 2])
    buffer.close()


def frozen(rank: Rank) -> None:
    """A rank is stopped beyond the deadline, learns it, and comes back."""
    buffer = rank.buffer()
    case = case_for(rank)
    flat.combine(buffer, flat.dispatch(buffer, case, rank.rank))
    rank.meet("whole")
    if rank.rank == 1:
        freeze(rank)
        expect(moewire.FencedError, lambda: flat.dispatch(buffer, case, rank.rank))
    else:
        with while_frozen(rank):
            go_on(buffer, rank, 300_000, {1})
    buffer.update_ep_member()
    flat.combine(buffer, flat.dispatch(buffer, case, rank.rank))
    rank.meet("end")
    buffer.close()
