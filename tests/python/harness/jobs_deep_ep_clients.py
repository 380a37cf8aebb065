"""DeepEP's interface as its clients use it: mask, statistics, keywords, what is refused."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import moewire
from moewire.deep_ep import Buffer, Config, EventHandle, EventOverlap

from . import verify
from .jobs_deep_ep import World, make_buffer, make_world, values_of
from .jobs_input import expect
from .member import Rank

HIDDEN, EXPERTS = 512, 12


def small_world(rank: Rank) -> World:
    return make_world(rank, HIDDEN, EXPERTS, False, num_max=16)


def dispatch(rank: Rank, world: World, buffer: Buffer, **options: Any) -> Any:
    mine = rank.rank
    return buffer.low_latency_dispatch(world.x[mine], world.topk[mine], 16, EXPERTS, **options)


def combine(rank: Rank, world: World, buffer: Buffer, result: Any, **options: Any) -> Any:
    y = options.pop("x", None)
    y = values_of(result[0], False) if y is None else y
    idx, weights = world.topk[rank.rank], world.weights[rank.rank]
    return buffer.low_latency_combine(y, idx, weights, result[2], **options)


def expected(rank: Rank, world: World, experts: range = range(EXPERTS)) -> torch.Tensor:
    """The combine of unchanged rows, over the given experts."""
    idx, weights = world.topk[rank.rank], world.weights[rank.rank]
    live = (idx >= experts.start) & (idx < experts.stop)
    return (world.x[rank.rank].float() * (weights * live).sum(1).view(-1, 1)).bfloat16()


def check(rank: Rank, world: World, out: torch.Tensor) -> None:
    assert verify.difference(out, expected(rank, world)) < 9e-4


def refused(call: Callable[[], Any], words: tuple[str, ...]) -> None:
    text = expect(moewire.MoewireError, call)
    assert all(word in text for word in words), text


def mask(rank: Rank) -> list[list[int]]:
    """The other ranks mask the last one and go on; what queries said."""
    world = small_world(rank)
    buffer = make_buffer(rank, world, enable_shrink=True)
    away, status, seen = rank.size - 1, torch.full((rank.size,), 7, dtype=torch.int32), []

    def query() -> None:
        buffer.low_latency_query_mask_buffer(status)
        seen.append(status.tolist())

    query()
    if rank.rank != away:
        buffer.low_latency_update_mask_buffer(away, True)
        query()
        _without_last_rank(rank, world, buffer)
        query()
        buffer.low_latency_update_mask_buffer(away, False)
        query()
        buffer.low_latency_update_mask_buffer(0, True)
        buffer.low_latency_clean_mask_buffer()
        query()
    rank.meet("end")
    buffer.destroy()
    return seen


def _without_last_rank(rank: Rank, world: World, buffer: Buffer) -> None:
    away, local = rank.size - 1, EXPERTS // rank.size
    stats = torch.zeros(local, dtype=torch.int32)
    result = dispatch(rank, world, buffer, use_fp8=False, cumulative_local_expert_recv_stats=stats)
    sent = torch.stack(world.topk[:away])
    mine = range(rank.rank * local, (rank.rank + 1) * local)
    assert stats.tolist() == [int((sent == expert).sum()) for expert in mine]
    assert result[2][1][:, away].tolist() == [0] * local
    out = combine(rank, world, buffer, result)[0]
    assert verify.difference(out, expected(rank, world, range(away * local))) < 1e-5


def no_mask(rank: Rank) -> None:
    buffer = make_buffer(rank, small_world(rank))
    status = torch.zeros(rank.size, dtype=torch.int32)
    for call in (
        lambda: buffer.low_latency_update_mask_buffer(1, True),
        lambda: buffer.low_latency_query_mask_buffer(status),
        buffer.low_latency_clean_mask_buffer,
    ):
        assert "enable_shrink" in expect(moewire.InvalidArgument, call)
    dist.barrier()
    with_mask = make_buffer(rank, small_world(rank), enable_shrink=True)
    refused(lambda: with_mask.low_latency_update_mask_buffer(rank.size, True), ("rank_to_mask",))
    refused(lambda: with_mask.low_latency_query_mask_buffer(status[:1]), ("mask_status",))
    dist.barrier()


def wait_statistics(rank: Rank, how: str) -> list[list[int]]:
    """Rank 0 comes 0.3 s late to a dispatch and a combine; nanoseconds waited, by source."""
    world = small_world(rank)
    buffer = make_buffer(rank, world)
    options = {"async_finish": how == "event", "return_recv_hook": how == "hook"}
    dispatched = torch.full((rank.size,), 1, dtype=torch.int64)
    combined = dispatched.clone()

    def late() -> None:
        dist.barrier()
        time.sleep(0.3 if rank.rank == 0 else 0)

    def finish(event: EventOverlap, hook: Any) -> None:
        if how == "hook":
            hook()
        elif how == "event":
            event.current_stream_wait()

    late()
    result = dispatch(rank, world, buffer, dispatch_wait_recv_cost_stats=dispatched, **options)
    finish(*result[3:])
    late()
    out, event, hook = combine(
        rank, world, buffer, result, combine_wait_recv_cost_stats=combined, **options
    )
    finish(event, hook)
    check(rank, world, out)
    dist.barrier()
    return [dispatched.tolist(), combined.tolist()]


def counts_without_hook(rank: Rank) -> None:
    """Statistics count when the rows are there, however that came about; not on an error."""
    world = small_world(rank)
    buffer = make_buffer(rank, world)
    local = EXPERTS // rank.size
    stats = torch.zeros(local, dtype=torch.int32)
    options = {"return_recv_hook": True, "cumulative_local_expert_recv_stats": stats}
    if rank.rank == 0:
        rank.meet("the other has sent")
    result = dispatch(rank, world, buffer, use_fp8=False, **options)
    if rank.rank == 1:
        assert stats.tolist() == [0] * local
        rank.meet("the other has sent")
    y = torch.zeros_like(result[0])
    combine(rank, world, buffer, result, x=y)
    assert torch.equal(stats, result[1])
    before = stats.clone()
    expect(
        moewire.PeerMismatchError,
        lambda: dispatch(
            rank,
            world,
            buffer,
            use_fp8=rank.rank == 0,
            cumulative_local_expert_recv_stats=stats,
        ),
    )
    assert torch.equal(stats, before)
    dist.barrier()


def small_print(rank: Rank) -> None:
    world = small_world(rank)
    buffer = make_buffer(rank, world)
    assert (buffer.rank, buffer.group_size) == (rank.rank, rank.size)
    assert buffer.group is dist.group.WORLD and buffer.low_latency_mode
    assert buffer.runtime is not None and buffer.nvshmem_qp_depth >= 1024
    with Buffer.capture() as captured:
        assert isinstance(captured.event, EventHandle)
    captured.current_stream_wait()
    assert Buffer.is_sm90_compiled() and buffer.get_comm_stream() is not None
    zeroed = buffer.get_local_buffer_tensor(torch.int8, use_rdma_buffer=True).zero_()
    assert zeroed.dtype is torch.int8
    assert buffer.get_local_buffer_tensor(torch.int32, torch.Size((3, 4))).shape == (3, 4)
    _configs()
    check(rank, world, combine(rank, world, buffer, dispatch(rank, world, buffer))[0])
    dist.barrier()
    buffer.destroy()
    buffer.destroy()
    assert buffer.runtime is None
    expect(moewire.ClosedError, lambda: dispatch(rank, world, buffer))
    watched = _plain_buffer(rank, world)
    gc.collect()
    assert watched() is None


def _plain_buffer(rank: Rank, world: World) -> weakref.ref[Buffer]:
    """One made without any option, and no longer held."""
    plain = Buffer(dist.group.WORLD)
    text = expect(moewire.InvalidArgument, lambda: dispatch(rank, world, plain))
    assert "low_latency_mode" in text
    assert "explicitly_destroy" in expect(moewire.InvalidArgument, plain.destroy)
    dist.barrier()
    return weakref.ref(plain)


def _configs() -> None:
    config = Config(num_sms=8, num_max_nvl_chunked_send_tokens=4)
    assert config.get_nvl_buffer_size_hint(7168 * 2, 8) == 0
    assert config.get_rdma_buffer_size_hint(7168 * 2, 8) == 0
    Buffer.set_num_sms(24)
    assert Buffer.num_sms == Buffer.get_dispatch_config(8).num_sms == 24
    assert Buffer.get_combine_config(8).num_sms == 24
    refused(lambda: Buffer.set_num_sms(7), ("7", "even"))
    refused(lambda: Config(-2), ("num_sms", "-2"))
    Buffer.set_num_sms(20)


def clean(rank: Rank) -> float:
    """A clean waits for every rank, and needs the same sizes on each; how long rank 1 waited."""
    world = small_world(rank)
    buffer = make_buffer(rank, world)
    dist.barrier()
    start = time.monotonic()
    time.sleep(0.3 if rank.rank == 0 else 0)
    buffer.clean_low_latency_buffer(16, HIDDEN, EXPERTS)
    waited = time.monotonic() - start
    different = HIDDEN - 128 * rank.rank
    expect(
        moewire.PeerMismatchError,
        lambda: buffer.clean_low_latency_buffer(16, different, EXPERTS),
    )
    check(rank, world, combine(rank, world, buffer, dispatch(rank, world, buffer))[0])
    dist.barrier()
    return waited


def like_vllm(rank: Rank) -> None:
    """Keywords and order of calls of vLLM: hook mode, two micro-batches on one buffer."""
    world = small_world(rank)
    handles: weakref.WeakValueDictionary[int, Buffer] = weakref.WeakValueDictionary()
    size = Buffer.get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank=16,
        hidden=HIDDEN,
        num_ranks=rank.size,
        num_experts=EXPERTS,
    )
    buffer = handles[0] = Buffer(
        group=rank.group(),
        num_nvl_bytes=1024 * 1024 * 1024,
        num_rdma_bytes=size,
        low_latency_mode=True,
        num_qps_per_rank=EXPERTS // rank.size,
        allow_nvlink_for_low_latency_mode=True,
        allow_mnnvl=False,
        explicitly_destroy=True,
        enable_shrink=True,
    )
    dispatched = []
    for fp8 in (True, False):
        dispatched.append(
            dispatch(
                rank,
                world,
                buffer,
                use_fp8=fp8,
                round_scale=True,
                use_ue8m0=True,
                async_finish=False,
                return_recv_hook=True,
            )
        )
    for fp8, result in zip((True, False), dispatched, strict=True):
        result[4]()
        out = torch.empty_like(world.x[rank.rank])
        got, _, hook = combine(
            rank,
            world,
            buffer,
            result,
            x=values_of(result[0], fp8),
            async_finish=False,
            zero_copy=False,
            return_recv_hook=fp8,
            out=out,
        )
        assert got is out and (hook is None) == (not fp8)
        if hook is not None:
            hook()
        check(rank, world, out)
    status = torch.ones(rank.size, dtype=torch.int32)
    buffer.low_latency_query_mask_buffer(status)
    assert status.tolist() == [0] * rank.size
    buffer.get_local_buffer_tensor(dtype=torch.int8, use_rdma_buffer=True).zero_()
    buffer.low_latency_clean_mask_buffer()
    check(rank, world, combine(rank, world, buffer, dispatch(rank, world, buffer))[0])
    dist.barrier()
    buffer.destroy()


def like_sglang(rank: Rank) -> None:
    """SGLang's imports and calls: sizes by configs, events for combines, a rank without tokens."""
    import moewire.compat.deep_ep

    moewire.compat.deep_ep.install()
    from deep_ep import Buffer, Config

    world = small_world(rank)
    if rank.size > 1:
        world.x[1], world.topk[1] = world.x[1][:0], world.topk[1][:0]
        world.weights[1] = world.weights[1][:0]
    group = rank.group()
    configs = (Config(num_sms=8), Buffer.get_dispatch_config(group.size()))
    nvl = max(one.get_nvl_buffer_size_hint(HIDDEN * 2, group.size()) for one in configs)
    rdma = Buffer.get_low_latency_rdma_size_hint(16, HIDDEN, group.size(), EXPERTS)
    Buffer.set_num_sms(20)
    buffer = Buffer(
        group,
        nvl,
        rdma,
        low_latency_mode=True,
        num_qps_per_rank=max(Buffer.num_sms, EXPERTS // rank.size),
        allow_mnnvl=True,
    )
    buffer.clean_low_latency_buffer(16, HIDDEN, EXPERTS)
    assert buffer.group_size == group.size() and buffer.low_latency_mode
    for hook_mode in (True, False):
        result = dispatch(
            rank,
            world,
            buffer,
            use_fp8=True,
            async_finish=not hook_mode,
            return_recv_hook=hook_mode,
        )
        result[4]() if hook_mode else result[3].current_stream_wait()
        out, event, hook = buffer.low_latency_combine(
            x=values_of(result[0], False),
            topk_idx=world.topk[rank.rank],
            topk_weights=world.weights[rank.rank],
            handle=result[2],
            async_finish=not hook_mode,
            return_recv_hook=hook_mode,
            overlap=False,
        )
        hook() if hook_mode else event.current_stream_wait()
        assert out.shape == world.x[rank.rank].shape
        if len(out):
            check(rank, world, out)
    dist.barrier()
