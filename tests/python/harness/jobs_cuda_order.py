"""Jobs over the emulated device: in which order operations are launched, and given back."""

from __future__ import annotations

import gc
import threading
from typing import Any

import torch

from moewire import _abi as abi
from moewire.errors import MoewireError

from . import oracle, verify
from .emulated import Emulated
from .jobs_cuda import TIMEOUT_US, Make, Place, combine, dispatch, inputs, outputs_of, small
from .jobs_input import expect
from .jobs_oracle import size_for


def combined_twice(place: Place, make: Make, rank: int, seed: int) -> None:
    """A hook of an earlier combine, called or dropped after the next one, leaves that one alone."""
    todo = [small(seed, 2, number) for number in range(2)]
    with make(size_for(todo), device="cuda") as buffer:
        for number, case in enumerate(todo):
            received = dispatch(place, buffer, case, rank, {})
            y = place.put(received.new_outputs())
            topk, weights = (
                place.put(torch.from_numpy(a.copy())) for a in (case.topk[rank], case.weights[rank])
            )
            outs, hooks = [], []
            for _ in range(2):
                out, _, hook = buffer.combine(
                    y,
                    topk,
                    weights,
                    None,
                    TIMEOUT_US,
                    received.handle,
                    False,
                    return_recv_hook=True,
                )
                outs.append(out)
                hooks.append(hook)
            first = hooks.pop(0)
            if number == 0:
                first()
            del first, hook
            hooks.pop()()
            place.synchronize()
            sent = (case.topk[rank], case.weights[rank], case.outputs_for(rank), case.hidden)
            for out in outs:
                verify.same(verify.bits(out), oracle.combine(*sent), f"{case}: rank {rank}")


def failed_behind_launch(place: Place, make: Make, rank: int, seed: int) -> None:
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
            x, topk = inputs(place, case, rank)
            try:
                buffer.dispatch(x, topk, None, 6, 4, TIMEOUT_US, False, **hows[number % 2])
            except MemoryError:
                place.synchronize()  # until then the error keeps what is written to
                continue
            raise AssertionError("the dispatch did not fail")
        assert statuses == [0] * len(todo), f"released with {statuses}"
        last = small(seed, 2, 10)
        plain = buffer.dispatch(
            *inputs(place, last, rank),
            None,
            6,
            4,
            TIMEOUT_US,
            False,
            return_recv_hook=True,
        )
        place.synchronize()
        plain[2].release()


def released_in_order(place: Place, make: Make, rank: int, seed: int) -> None:
    """What is dropped is released behind the operation that was launched last."""
    case = small(seed, 1)
    x, topk = inputs(place, case, 0)
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
            written = outputs_of(result), outputs_of(other)
            place.follow = spy  # type: ignore[method-assign]
            del result
            assert followed == [(first, second)], f"{how}: {followed}"
            place.follow = follow  # type: ignore[method-assign]
            followed.clear()
            del other
            place.synchronize(first)
            place.synchronize(second)
            del written


def launched_alone(place: Place, make: Make, rank: int, seed: int) -> None:
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


def kept(place: Place, make: Make, rank: int, seed: int) -> None:
    """Outputs are kept for the caller's stream, and for another one that waits for the event."""
    case = small(seed, 1)
    x, topk = inputs(place, case, 0)
    with make(size_for([case]), device="cuda", copy_outputs=True) as buffer:
        recv_x, recv_count, handle, event, _ = buffer.dispatch(
            x, topk, None, 6, 2, TIMEOUT_US, False, async_finish=True
        )
        outputs = [recv_x, recv_count, handle[0], handle[1]]
        found = {
            id(tensor) for tensor, number in place._kept if number == place.handle(place.stream())
        }
        assert found >= {id(output) for output in outputs}, "not kept for the caller's stream"
        streams = [place.stream(), place.side()]
        for stream in streams:
            with place.on(stream):
                event.current_stream_wait()
            found = {id(tensor) for tensor, number in place._kept if number == place.handle(stream)}
            assert found >= {id(output) for output in outputs}, f"{len(found)} are kept"
            place.synchronize(stream)


def closed_again(place: Emulated, make: Make, rank: int, seed: int) -> int:
    """A close that fails, at whatever call of the driver, is repeated. How often one did.

    What watches the buffer enters the context, too, and may be the one that fails. Then no close
    did, and the calls have another turn.
    """
    case, failed = small(seed, 1), 0
    before = _left(place)
    for number in range(16 * 20):
        if failed and number >= 16:
            break
        buffer = make(size_for([case]), device="cuda", prefix=str(number))
        place.fail("cuCtxPushCurrent_v2", number % 16)
        try:
            buffer.close()
        except MoewireError:
            failed += 1
            buffer.close()
        place.fail("cuCtxPushCurrent_v2", 1 << 30)
        buffer.close()
        assert _left(place) == before
    return failed


def dropped_after_close(place: Place, make: Make, rank: int, seed: int) -> None:
    """A buffer whose close has failed is closed when it is dropped."""
    before = _left(place)
    buffer = make(size_for([small(seed, 1)]), device="cuda")
    runtime = buffer.runtime
    whole = runtime.lib

    class Failing:
        """The library, which cannot close the buffer once."""

        def __getattr__(self, name: str) -> Any:
            return self.fail if name == "buffer_close" else getattr(whole, name)

        def fail(self, buffer: Any) -> int:
            runtime.lib = whole
            return abi.MW_ERR_DEVICE

    runtime.lib = Failing()  # type: ignore[assignment]
    expect(MoewireError, buffer.close)
    assert not runtime._freed
    del buffer
    gc.collect()
    assert runtime._freed
    assert _left(place) == before


def _left(place: Place) -> list[str]:
    """Without what a place makes for itself."""
    return [line for line in place.left() if not line.startswith(("streams", "events"))]
