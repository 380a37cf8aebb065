"""DeepEP's interface over the emulated device: jobs for the CPU, and what is CUDA's alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

import moewire
from moewire import deep_ep, event

from . import jobs_deep_ep_clients as clients
from .jobs_deep_ep import World, make_buffer, values_of
from .jobs_input import expect
from .member import Rank
from .on_cuda import current_device, folder_of


def over_device(rank: Rank, driver: str, job: Callable[..., Any], *args: Any) -> Any:
    """A job for the CPU, with the emulated device as torch's current one."""
    with current_device(driver, folder_of(rank.folder, rank.rank)) as place:
        answer = job(rank, *args)
        place.synchronize_all()
        return answer


def chosen_device(rank: Rank) -> None:
    """The current device, or the one asked for; rows as for a buffer of the core."""
    world = clients.small_world(rank)
    group = rank.group()
    size = deep_ep.Buffer.get_low_latency_rdma_size_hint(16, clients.HIDDEN, 1, clients.EXPERTS)
    for device, on_cuda in ((None, True), ("cuda", True), ("cuda:0", True), ("cpu", False)):
        buffer = deep_ep.Buffer(group, 0, size, True, device=device)
        assert buffer.runtime is not None
        assert buffer.runtime.drives is not on_cuda
        there = world if on_cuda else _on_cpu(world)
        result = clients.dispatch(rank, there, buffer)
        clients.check(rank, there, clients.combine(rank, there, buffer, result)[0])


def _on_cpu(world: World) -> World:
    given = world.x, world.topk, world.weights
    x, topk, weights = ([tensor.cpu() for tensor in part] for part in given)
    return replace(world, x=x, topk=topk, weights=weights)


def refused(rank: Rank) -> None:
    """Refused by name, and without harm."""
    world = clients.small_world(rank)
    buffer = make_buffer(rank, world)
    result = clients.dispatch(rank, world, buffer)
    away = torch.zeros(1, dtype=torch.int64, device="meta")
    elsewhere = torch.zeros(clients.EXPERTS, dtype=torch.int32, device="meta")
    for call in (
        lambda: clients.dispatch(rank, world, buffer, cumulative_local_expert_recv_stats=elsewhere),
        lambda: clients.dispatch(rank, world, buffer, dispatch_wait_recv_cost_stats=away),
        lambda: clients.combine(rank, world, buffer, result, combine_wait_recv_cost_stats=away),
        lambda: buffer.low_latency_dispatch(
            world.x[0].to("meta"), world.topk[0], 16, clients.EXPERTS
        ),
    ):
        text = expect(moewire.InvalidArgument, call)
        assert "device meta given; allowed: device cuda:0" in text
    text = expect(moewire.InvalidArgument, lambda: deep_ep.Buffer(dist.group.WORLD, 0, 0, True))
    assert "num_rdma_bytes: 0 given" in text and "get_low_latency_rdma_size_hint" in text
    clients.check(rank, world, clients.combine(rank, world, buffer, result)[0])


def wait_statistics(rank: Rank) -> int:
    """They are what the buffer's own statistics are; gives how much that is."""
    world = clients.small_world(rank)
    buffer = make_buffer(rank, world)
    dispatched = torch.full((rank.size,), 3, dtype=torch.int64)
    combined = torch.full((rank.size,), 5, dtype=torch.int64)
    for how in ({}, {"return_recv_hook": True}, {"async_finish": True}) * 2:
        result = clients.dispatch(
            rank, world, buffer, dispatch_wait_recv_cost_stats=dispatched, **how
        )
        _finish(result)
        back = clients.combine(
            rank, world, buffer, result, combine_wait_recv_cost_stats=combined, **how
        )
        _finish(back)
        clients.check(rank, world, back[0])
    stats = buffer._buffer.stats()
    assert (dispatched - 3).tolist() == stats["dispatch"]["wait_ns_for"]
    assert (combined - 5).tolist() == stats["combine"]["wait_ns_for"]
    return int(dispatched.sum() - 3 * rank.size)


def _finish(result: Any) -> None:
    event, hook = result[-2:]
    if hook is not None:
        hook()
    if event.event is not None:
        event.current_stream_wait()


def streams(rank: Rank) -> None:
    """Where operations with events run, and that counts come before their event."""
    world = clients.small_world(rank)
    buffer = make_buffer(rank, world)
    assert buffer.runtime is not None and not buffer.runtime.drives
    place: Any = buffer.runtime.place
    log: list[tuple[str, int]] = []
    record, on = place.record, place.on

    def recorded(stream: Any) -> Any:
        log.append(("record", stream.number))
        return record(stream)

    def entered(stream: Any) -> Any:
        log.append(("work", stream.number))
        return on(stream)

    stats = torch.zeros(clients.EXPERTS, dtype=torch.int32)
    place.record, place.on = recorded, entered
    result = clients.dispatch(
        rank, world, buffer, async_finish=True, cumulative_local_expert_recv_stats=stats
    )
    place.record, place.on = record, on
    side = buffer.get_comm_stream().number
    assert side != place.stream().number and log[-2:] == [("work", side), ("record", side)], log
    assert any(kept is stats for kept, number in place._kept if number == side)
    assert isinstance(result[3].event, event.StreamEvent)
    result[3].current_stream_wait()
    assert torch.equal(stats, result[1])
    with deep_ep.Buffer.capture() as captured:
        assert isinstance(captured.event, deep_ep.EventHandle)
    captured.current_stream_wait()
    clients.check(rank, world, clients.combine(rank, world, buffer, result)[0])


def recorded(rank: Rank, driver: str) -> None:
    """A layer in hook mode, in one graph, replayed with other inputs in the same tensors."""
    with current_device(driver, folder_of(rank.folder, rank.rank), waiting=False) as place:
        world = clients.small_world(rank)
        buffer = make_buffer(rank, world, enable_shrink=True)
        mine = rank.rank
        x, topk, weights = world.x[mine].clone(), world.topk[mine].clone(), world.weights[mine]
        stream = place.side()

        def layer() -> tuple[torch.Tensor, object]:
            """The result, and what the device writes to: torch's allocator would keep it."""
            recv_x, count, handle, _, hook = buffer.low_latency_dispatch(
                x, topk, 16, clients.EXPERTS, use_fp8=False, return_recv_hook=True
            )
            hook()
            out, _, hook = buffer.low_latency_combine(
                recv_x, topk, weights, handle, return_recv_hook=True
            )
            hook()
            return out, (count, handle)

        with place.on(stream):
            out, kept = layer()
            place.synchronize()
            clients.check(rank, world, out)
            with place.captured(stream) as graph:
                out, kept = layer()
            for step in range(3):
                x.copy_(world.x[mine].roll(step, 0))
                place.replay(graph[0], stream)
                place.synchronize()
                live = (weights * (topk >= 0)).sum(1).view(-1, 1)
                want = (x.float() * live).bfloat16()
                assert torch.allclose(out.float(), want.float(), rtol=0.02), step
            status = torch.ones(rank.size, dtype=torch.int32)
            buffer.low_latency_query_mask_buffer(status)
            assert status.tolist() == [0] * rank.size
        rank.meet("end")
        place.destroy(graph[0])
        del kept
        buffer.destroy()


def lost(rank: Rank, masked: bool) -> None:
    """A rank that dies is an error without a mask, and shows in one."""
    world = clients.small_world(rank)
    buffer = make_buffer(rank, world, enable_shrink=masked)
    result = clients.dispatch(rank, world, buffer)
    clients.check(rank, world, clients.combine(rank, world, buffer, result)[0])
    rank.meet("whole")
    away = rank.size - 1
    if rank.rank == away:
        os.kill(os.getpid(), signal.SIGKILL)
    if not masked:
        # It waits until the group goes on without the rank that died; the next call says so.
        _, count, handle, _, _ = clients.dispatch(rank, world, buffer, use_fp8=False)
        count.tolist()  # the host waits for it
        handle.release()
        text = expect(
            moewire.PeerLostError, lambda: clients.dispatch(rank, world, buffer, use_fp8=False)
        )
        assert f"rank [{away}]" in text
    else:
        result = clients.dispatch(rank, world, buffer, use_fp8=False)
        out = clients.combine(rank, world, buffer, result, x=values_of(result[0], False))[0]
        status = torch.zeros(rank.size, dtype=torch.int32)
        buffer.low_latency_query_mask_buffer(status)
        assert status.tolist() == [0] * away + [1]
        here = range(away * clients.EXPERTS // rank.size)
        assert clients.verify.difference(out, clients.expected(rank, world, here)) < 1e-5
    rank.meet_some("end", list(range(away)))
    buffer.destroy()
