"""Jobs under a default device and dtype of torch that differ from the buffer's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch

import moewire
from moewire import autograd
from moewire.compat._mooncake import Buffer as MooncakeBuffer
from moewire.deep_ep import Buffer as DeepEPBuffer

from . import verify
from .cases import Case
from .jobs_flat import case_for
from .jobs_flat import size_for as size_for_both
from .member import Rank

# What a job found: compared, with device and dtype.
Found: TypeAlias = list[torch.Tensor]
Job: TypeAlias = Callable[[Rank, Case], Found]


@contextmanager
def _other_defaults() -> Iterator[None]:
    torch.set_default_device("meta")
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)


def under_other_defaults(rank: Rank, job: Job) -> None:
    """The job's results are the same under any defaults."""
    case = case_for(rank)
    rank.group()
    want = job(rank, case)
    with _other_defaults():
        got = job(rank, case)
    assert len(got) == len(want) > 2
    for number, (one, other) in enumerate(zip(got, want, strict=True)):
        assert (one.device, one.dtype) == (other.device, other.dtype), number
        assert torch.equal(one, other), number


def _inputs(rank: Rank, case: Case) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x, ids = verify.bf16(case.x[rank.rank]), torch.from_numpy(case.topk[rank.rank].copy())
    return x, ids, torch.from_numpy(case.weights[rank.rank].copy())


def _counted(recv_x: Any, counts: torch.Tensor) -> Found:
    parts = recv_x if isinstance(recv_x, tuple) else (recv_x,)
    return [part[e, :n].clone() for part in parts for e, n in enumerate(counts.tolist())]


def _group() -> Any:
    return torch.distributed.group.WORLD


def packed(rank: Rank, case: Case) -> Found:
    x, ids, weights = _inputs(rank, case)
    found: Found = []
    with moewire.Buffer(_group(), deterministic=True) as buffer:
        for fp8, later in ((False, False), (True, True)):
            recv_x, counts, handle, event, _ = buffer.dispatch(
                x, ids, None, case.num_max, case.num_experts, -1, fp8, async_finish=later
            )
            if later:
                event.current_stream_wait()
            found += [counts, handle[1], *_counted(recv_x, counts)]
            y = buffer.get_next_combine_buffer(handle)
            y.fill_(1)
            found.append(buffer.combine(y, ids, weights, None, -1, handle, zero_copy=True)[0])
    return found


def flat(rank: Rank, case: Case) -> Found:
    x, ids, weights = _inputs(rank, case)
    with moewire.Buffer(_group(), size_for_both([case])) as buffer:
        got = buffer.dispatch_flat(x, ids, weights, case.num_max, case.num_experts)
        assert isinstance(got.recv_x, torch.Tensor)
        assert got.recv_topk_idx is not None and got.recv_topk_weights is not None
        rows = got.recv_x.clone()
        found = [rows, got.recv_topk_idx.clone(), got.recv_topk_weights.clone()]
        found += [got.src_info.clone(), got.handle.layout_range]
        return [*found, buffer.combine_flat(rows, got.handle)[0]]


def mooncake(rank: Rank, case: Case) -> Found:
    x, ids, weights = _inputs(rank, case)
    active = torch.ones((rank.size,), dtype=torch.int32, device="cpu")
    with MooncakeBuffer(_group(), device="cpu", deterministic=True) as buffer:
        recv_x, counts, handle, _, _ = buffer.dispatch(
            x, ids, active, case.num_max, case.num_experts, -1, False
        )
        out = buffer.combine(recv_x, ids, weights, active, -1, handle)[0]
        return [counts, active, out]


def deep_ep(rank: Rank, case: Case) -> Found:
    x, ids, weights = _inputs(rank, case)
    local = case.num_experts // rank.size
    buffer = DeepEPBuffer(
        _group(), low_latency_mode=True, enable_shrink=True, explicitly_destroy=True, device="cpu"
    )
    stats = torch.zeros((local,), dtype=torch.int32, device="cpu")
    waited = torch.zeros((rank.size,), dtype=torch.int64, device="cpu")
    mask = torch.full((rank.size,), 7, dtype=torch.int32, device="cpu")
    recv_x, counts, handle, _, hook = buffer.low_latency_dispatch(
        x, ids, case.num_max, case.num_experts, stats, waited, False, return_recv_hook=True
    )
    assert hook is not None and isinstance(recv_x, torch.Tensor)
    hook()
    out = buffer.low_latency_combine(
        recv_x, ids, weights, handle, combine_wait_recv_cost_stats=waited
    )[0]
    buffer.low_latency_query_mask_buffer(mask)
    buffer.low_latency_clean_mask_buffer()
    buffer.clean_low_latency_buffer(case.num_max, case.hidden, case.num_experts)
    room = buffer.get_local_buffer_tensor(torch.bfloat16, torch.Size((3,)))
    assert bool((waited >= 0).all())
    rank.meet(f"destroy-{torch.get_default_dtype()}")
    buffer.destroy()
    return [counts, stats, mask, room, out]


def _learns(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.requires_grad_() for tensor in tensors)


def gradients(rank: Rank, case: Case) -> Found:
    x, ids, weights = _inputs(rank, case)
    x, weights = _learns(x, weights)
    sizes = case.num_max, case.hidden, rank.size, case.num_experts, case.num_topk
    size = autograd.get_ep_buffer_size_hint(*sizes)
    with moewire.Buffer(_group(), size) as buffer:
        rows, routing = autograd.dispatch(
            buffer, x, ids, weights, None, case.num_max, case.num_experts, -1
        )
        out = autograd.combine(rows * 2, routing)
        out.float().sum().backward()
        assert x.grad is not None and weights.grad is not None
        return [rows.detach(), out.detach(), x.grad, weights.grad]


def flat_gradients(rank: Rank, case: Case) -> Found:
    x, ids, weights = _inputs(rank, case)
    x, weights = _learns(x, weights)
    sizes = case.num_max, case.hidden, rank.size, case.num_topk
    with moewire.Buffer(_group(), autograd.get_flat_buffer_size_hint(*sizes)) as buffer:
        rows, routing = autograd.dispatch_flat(
            buffer, x, ids, weights, case.num_max, case.num_experts
        )
        y = rows * routing.topk_weights.sum(1, keepdim=True).bfloat16()
        out = autograd.combine_flat(y, routing)
        out.float().sum().backward()
        assert x.grad is not None and weights.grad is not None
        return [rows.detach(), out.detach(), x.grad, weights.grad]


JOBS: tuple[Job, ...] = (packed, flat, mooncake, deep_ep, gradients, flat_gradients)
