"""Jobs about flat operations over the emulated device."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch

import moewire

from . import cases, flat, verify
from .cases import Case
from .emulated import Emulated
from .jobs_cuda import TIMEOUT_SECONDS, TIMEOUT_US, Make, Place, combine, dispatch, inputs, small
from .jobs_flat import size_for
from .jobs_input import expect
from .jobs_oracle import CALLS


class OnHost:
    """What was received, its tensors copied to the CPU when they are asked for."""

    def __init__(self, got: Any) -> None:
        self._got = got

    def __getattr__(self, name: str) -> Any:
        return _on_host(getattr(self._got, name))


def _on_host(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, tuple):
        return tuple(_on_host(one) for one in value)
    return value


def random_cases(place: Place, make: Make, rank: int, size: int, seed: int, count: int) -> int:
    """Every way to call, over random cases, some of them packed; the number of flat combines."""
    todo = [cases.make(seed, 5000 + number, size) for number in range(count)]
    checked = 0
    with make(size_for(todo), device="cuda") as buffer:
        for number, case in enumerate(todo):
            print(case)
            if number % 5 == 4:
                combine(place, buffer, dispatch(place, buffer, case, rank, {}), {})
            else:
                checked += _one_case(place, buffer, case, rank, number)
        place.synchronize()
    return checked


def _one_case(place: Place, buffer: moewire.Buffer, case: Case, rank: int, number: int) -> int:
    common = np.random.default_rng([*case.salt, number, 41])
    own = np.random.default_rng([*case.salt, number, rank, 42])
    kind = int(common.integers(len(flat.EXTRAS)))
    received = received_flat(place, buffer, case, rank, CALLS[int(own.integers(3))], kind)
    combine_flat(place, buffer, received, CALLS[int(own.integers(3))], bool(own.integers(2)))
    times = 1
    if common.random() < 0.5:
        how = CALLS[int(own.integers(3))]
        combine_flat(place, buffer, received, how, bool(own.integers(2)))
        times += 1
    if common.random() < 0.5:
        again = received_flat(
            place, buffer, case, rank, CALLS[int(own.integers(3))], kind, received.got.handle
        )
        combine_flat(place, buffer, again, {})
        times += 1
    return times


def received_flat(
    place: Place,
    buffer: moewire.Buffer,
    case: Case,
    rank: int,
    how: dict[str, bool],
    kind: int = 0,
    handle: Any = None,
) -> flat.Received:
    """Dispatches this rank's share and checks what came."""
    x, topk = inputs(place, case, rank)
    weights = place.put(torch.from_numpy(case.weights[rank].copy()))
    extra = [place.put(tensor) for tensor in flat.extras_of(case, rank, kind)]
    got = buffer.dispatch_flat(
        x,
        None if handle else topk,
        None if handle else weights,
        case.num_max,
        case.num_experts,
        extra=extra,
        timeout_us=TIMEOUT_US,
        use_fp8=case.fp8,
        round_scale=case.round_scale,
        use_ue8m0=case.ue8m0,
        fp32_outputs=case.fp32_outputs,
        handle=handle,
        **how,
    )
    received = flat.Received(case, rank, kind, OnHost(got), unrouted=handle is not None)
    if rank % 2:  # else reading results launches the receive phase, and waits
        received.finish()
    received.check()
    return received


def combine_flat(
    place: Place,
    buffer: moewire.Buffer,
    received: flat.Received,
    how: dict[str, bool],
    zero_copy: bool = False,
) -> None:
    """Combines and checks every bit."""
    case, rank, handle = received.case, received.rank, received.got.handle
    if zero_copy:
        y = buffer.get_next_combine_buffer(handle)
        place.synchronize()  # others may still read what was combined before
        received.outputs(y)
    else:
        y = place.put(received.outputs())
    out, event, hook = buffer.combine_flat(
        y, handle, timeout_us=TIMEOUT_US, zero_copy=zero_copy, **how
    )
    if hook is not None:
        hook()
    if event.event is not None:
        event.current_stream_wait()
    place.synchronize()
    want = flat.combined(case, rank)
    verify.same(verify.bits(out), want, f"{case}: flat combine on rank {rank}")


def outlived(place: Place, make: Make, rank: int, seed: int) -> None:
    """Views that are first asked for after close lie over the memory, not over nothing."""
    case = small(seed, 1)
    buffer = make(size_for([case]), device="cuda")
    got = _dispatched(place, buffer, case)
    place.synchronize()
    buffer.close()
    views = got.recv_x, got.recv_topk_idx
    kept = any("allocation" in line or "range" in line for line in place.left())
    assert kept or not isinstance(place, Emulated), "the memory of these views is released"
    flat.Received(case, 0, 0, OnHost(got)).check()
    del views


def _dispatched(place: Place, buffer: moewire.Buffer, case: Case, **how: bool) -> Any:
    """By one rank."""
    return _dispatched_from(_on_device(place, case), buffer, **how)


def _on_device(place: Place, case: Case) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, ids and weights. In a capture a device copies nothing from the host's memory."""
    return (*inputs(place, case, 0), place.put(torch.from_numpy(case.weights[0].copy())))


def _dispatched_from(
    given: tuple[torch.Tensor, torch.Tensor, torch.Tensor], buffer: moewire.Buffer, **how: bool
) -> Any:
    x, topk, weights = given
    got: Any = buffer.dispatch_flat(x, topk, weights, 6, 2, timeout_us=TIMEOUT_US, **how)
    got.inputs = (x, topk, weights)  # torch's allocator keeps such for a stream
    return got


def kept(place: Place, make: Make, rank: int, seed: int) -> None:
    """Copies are kept for the caller's stream, and for another one that waits for the event."""
    case = small(seed, 1)
    with make(size_for([case]), device="cuda", copy_outputs=True) as buffer:
        with place.waiting():
            got = _dispatched(place, buffer, case, async_finish=True)
        caller, other = place.stream(), place.side()
        found = _memory_kept(place, caller)
        with place.on(other):
            got.event.current_stream_wait()
        found_later = _memory_kept(place, other)
        outputs = (got.recv_x, got.src_info, got.recv_topk_idx, got.recv_topk_weights)
        memory = {output.untyped_storage().data_ptr() for output in outputs}
        assert found >= memory, "not kept for the caller's stream"
        assert found_later >= memory, "not kept for a stream that waits"
        place.synchronize(other)


def _memory_kept(place: Place, stream: Any) -> set[int]:
    number = place.handle(stream)
    kept = [tensor for tensor, other in place._kept if other == number]
    return {tensor.untyped_storage().data_ptr() for tensor in kept}


def launched_only(place: Place, make: Make, rank: int, seed: int) -> None:
    """No call waits for the device, copies or not, until the rows are asked for."""
    case, waits = small(seed, 1), list[Any]()
    finish = place.finish

    def spy(stream: Any) -> None:
        waits.append(stream)
        finish(stream)

    place.finish = spy  # type: ignore[method-assign]
    with make(size_for([case]), device="cuda", copy_outputs=True) as buffer:
        for how in ({}, {"async_finish": True}, {"return_recv_hook": True}):
            with place.waiting():
                got = _dispatched(place, buffer, case, **how)
                if got.hook is not None:
                    got.hook()
            assert not waits, f"{how}: waited for the device"
            flat.Received(case, 0, 0, OnHost(got)).check()
            assert len(waits) == 1, f"{how}: {waits}"
            waits.clear()
            got.handle.release()
        place.synchronize()
    place.finish = finish  # type: ignore[method-assign]


def asked_in_capture(place: Place, make: Make, rank: int, seed: int) -> None:
    """The count of an earlier dispatch is refused, and the capture goes on."""
    case, stream = small(seed, 1), place.side()
    with make(2 * size_for([case]), device="cuda", num_slots=3) as buffer:
        before = [_dispatched(place, buffer, case)]
        with place.on(stream):
            before.append(_dispatched(place, buffer, case))
            given = _on_device(place, case)
        place.synchronize(stream)
        place.synchronize()
        with place.on(stream), place.captured(stream) as graph:
            for got in before:
                for ask in (lambda got=got: got.num_recv_tokens, lambda got=got: got.recv_x):
                    text = expect(moewire.UnsupportedError, ask)
                    assert "ask num_recv_tokens before the capture" in text
            recorded = _dispatched_from(given, buffer)
            assert recorded.num_recv_tokens == 6
        place.destroy(graph[0])
        for got in before:
            flat.Received(case, 0, 0, OnHost(got)).check()
        place.synchronize()


def hooked_in_capture(place: Place, make: Make, rank: int, seed: int) -> None:
    """The second phase of what ran is never recorded, by any call, and is launched later."""
    case, stream = small(seed, 1), place.side()
    with make(size_for([case]), device="cuda") as buffer:
        with place.on(stream):
            got = _dispatched(place, buffer, case, return_recv_hook=True)
            with place.captured(stream) as graph:
                for ask in (got.hook, lambda: got.num_recv_tokens, lambda: got.recv_x):
                    text = expect(moewire.UnsupportedError, ask)
                    assert "before the capture" in text
            place.destroy(graph[0])
            got.hook()
        flat.Received(case, 0, 0, OnHost(got)).check()
        place.synchronize()


def kept_elsewhere(place: Place, make: Make, rank: int, seed: int) -> None:
    """A handle's contents are read on streams other than that of its memory, too."""
    case, other = small(seed, 1), place.side()
    with make(size_for([case]), device="cuda") as buffer:
        first = _dispatched(place, buffer, case)
        x, _ = inputs(place, case, 0)
        with place.on(other):
            assert first.handle.layout_range.shape == (1,)
            assert _memory_of(first.handle._rows.layout) in _memory_kept(place, other)
            again = buffer.dispatch_flat(
                x, None, None, 6, 2, handle=first.handle, timeout_us=TIMEOUT_US
            )
            assert _memory_of(first.handle._topk_idx) in _memory_kept(place, other)
        place.synchronize()
        assert again.num_recv_tokens == first.num_recv_tokens


def _memory_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def copied(place: Place, make: Make, rank: int, seed: int, how: dict[str, bool]) -> None:
    """Ordinary tensors hold their numbers when the workspace has others."""
    case, other = small(seed, 2), small(seed, 2, 1)
    with make(size_for([case]), device="cuda", copy_outputs=True) as buffer:
        with place.waiting():  # the emulated device has to be done when torch copies
            first = received_flat(place, buffer, case, rank, how, 1)
            first.got.handle.release()
            for _ in range(2):
                combine_flat(place, buffer, received_flat(place, buffer, other, rank, {}), {})
        first.check()


def recorded(place: Place, make: Make, rank: int, seed: int, together: threading.Barrier) -> None:
    """Dispatch and combine of one graph, replayed with other inputs in the same tensors.

    While it is recorded, there are as many rows as there is room for.
    """
    todo = [small(seed, 2, number) for number in range(4)]
    with make(size_for(todo), device="cuda") as buffer:
        combine_flat(place, buffer, received_flat(place, buffer, todo[0], rank, {}), {})
        case, stream = todo[1], place.side()
        x, topk = inputs(place, case, rank)
        weights = place.put(torch.from_numpy(case.weights[rank].copy()))
        for turn in range(together.parties):
            together.wait(TIMEOUT_SECONDS)
            if turn != rank:
                continue
            with place.on(stream), place.captured(stream) as graph:
                got = buffer.dispatch_flat(x, topk, weights, 6, 4, timeout_us=TIMEOUT_US)
                assert got.num_recv_tokens == 12
                out, _, _ = buffer.combine_flat(got.recv_x, got.handle, timeout_us=TIMEOUT_US)
        together.wait(TIMEOUT_SECONDS)
        for case in todo[1:]:
            x.copy_(verify.bf16(case.x[rank]))
            topk.copy_(torch.from_numpy(case.topk[rank]))
            place.synchronize()
            place.replay(graph[0], stream)
            place.synchronize(stream)
            words = got.handle.layout_range.tolist()
            assert sum(word & 0xFFFFFFFF for word in words) == len(flat.rows_for(case, rank))
            want = _sums_of_rows(case, rank)
            verify.same(verify.bits(out), want, f"{case}: replayed on rank {rank}")
        together.wait(TIMEOUT_SECONDS)
        place.destroy(graph[0])


def _sums_of_rows(case: Case, rank: int) -> np.ndarray:
    """The result if every rank answers with the rows that it got."""
    total = torch.zeros(len(case.x[rank]), case.hidden)
    rows = verify.bf16(case.x[rank]).float()
    for token, chosen in enumerate(case.topk[rank].tolist()):
        for _ in {expert // case.num_local for expert in chosen if expert >= 0}:
            total[token] += rows[token]
    return verify.bits(total.to(torch.bfloat16))
