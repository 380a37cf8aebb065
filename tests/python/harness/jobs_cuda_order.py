"""Jobs over the emulated device: in which order operations are launched, and given back."""

from __future__ import annotations

import threading
from typing import Any

import torch

from . import verify
from .emulated import Emulated
from .jobs_cuda import TIMEOUT_US, Make, combine, dispatch, small
from .jobs_oracle import size_for


def failed_behind_launch(place: Emulated, make: Make, rank: int, seed: int) -> None:
    """More dispatches than there are slots fail once they are launched; the next are served."""
    todo = [small(seed, 2, number) for number in range(10)]
    hows = ({}, {"return_recv_hook": True})
    with make(size_for(todo), device="cuda", copy_outputs=True) as buffer:
        gpu = buffer.runtime.gpu
        assert gpu is not None
        release, statuses = gpu.release, list[int]()

        def spy(*args: Any) -> int:
            statuses.append(release(*args))
            return statuses[-1]

        gpu.release = spy  # type: ignore[method-assign]
        for number, case in enumerate(todo):
            x, topk = verify.bf16(case.x[rank]), torch.from_numpy(case.topk[rank].copy())
            try:
                buffer.dispatch(x, topk, None, 6, 4, TIMEOUT_US, False, **hows[number % 2])
            except MemoryError:
                place.synchronize()  # until then the error keeps what is written to
                continue
            raise AssertionError("the dispatch did not fail")
        assert statuses == [0] * len(todo), f"released with {statuses}"
        last = small(seed, 2, 10)
        plain = buffer.dispatch(
            verify.bf16(last.x[rank]),
            torch.from_numpy(last.topk[rank].copy()),
            None,
            6,
            4,
            TIMEOUT_US,
            False,
            return_recv_hook=True,
        )
        place.synchronize()
        plain[2].release()


def released_in_order(place: Emulated, make: Make, rank: int, seed: int) -> None:
    """What is dropped is released behind the operation that was launched last."""
    case = small(seed, 1)
    x, topk = verify.bf16(case.x[0]), torch.from_numpy(case.topk[0].copy())
    first, second = place.side(), place.side()
    followed: list[tuple[Any, Any]] = []
    follow = place.follow

    def spy(stream: Any, other: Any) -> None:
        followed.append((stream, other))
        follow(stream, other)

    with make(size_for([case]), device="cuda") as buffer:
        for how in ({}, {"return_recv_hook": True}):
            with place.on(first):
                result = buffer.dispatch(x, topk, None, 6, 2, TIMEOUT_US, False, **how)
            with place.on(second):
                other = buffer.dispatch(x, topk, None, 6, 2, TIMEOUT_US, False)
            written = (result[1], result[2][1], other[1], other[2][1])
            place.follow = spy  # type: ignore[method-assign]
            del result
            assert followed == [(first, second)], f"{how}: {followed}"
            place.follow = follow  # type: ignore[method-assign]
            followed.clear()
            del other
            place.synchronize(first)
            place.synchronize(second)
            del written


def launched_alone(place: Emulated, make: Make, rank: int, seed: int) -> None:
    """No other thread can put an operation in order while one is launched."""
    case = small(seed, 1)
    with make(size_for([case]), device="cuda") as buffer:
        runtime = buffer.runtime
        assert runtime.gpu is not None
        lock, free, whole = runtime.gpu.streams.lock, list[bool](), runtime.lib

        def probe() -> None:
            free.append(lock.acquire(blocking=False))

        class Spy:
            def __getattr__(self, name: str) -> Any:
                call = getattr(whole, name)
                if name not in ("buffer_dispatch", "buffer_combine", "op_wait"):
                    return call

                def probed(*args: Any) -> Any:
                    thread = threading.Thread(target=probe)
                    thread.start()
                    thread.join()
                    return call(*args)

                return probed

        runtime.lib = Spy()  # type: ignore[assignment]
        received = dispatch(place, buffer, case, 0, {"return_recv_hook": True})
        combine(place, buffer, received, {})
        runtime.lib = whole
    assert free == [False] * 3, free


def kept(place: Emulated, make: Make, rank: int, seed: int) -> None:
    """Outputs are kept for the caller's stream, and for another one that waits for the event."""
    case = small(seed, 1)
    x, topk = verify.bf16(case.x[0]), torch.from_numpy(case.topk[0].copy())
    with make(size_for([case]), device="cuda", copy_outputs=True) as buffer:
        recv_x, recv_count, handle, event, _ = buffer.dispatch(
            x, topk, None, 6, 2, TIMEOUT_US, False, async_finish=True
        )
        outputs = [recv_x, recv_count, handle[0], handle[1]]
        found = {id(tensor) for tensor, number in place._kept if number == place.stream().number}
        assert found >= {id(output) for output in outputs}, "not kept for the caller's stream"
        streams = [place.stream(), place.side()]
        for stream in streams:
            with place.on(stream):
                event.current_stream_wait()
            found = {id(tensor) for tensor, number in place._kept if number == stream.number}
            assert found >= {id(output) for output in outputs}, f"{len(found)} are kept"
            place.synchronize(stream)
