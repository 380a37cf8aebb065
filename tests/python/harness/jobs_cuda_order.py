"""Jobs over the emulated device: in which order operations are launched, and released."""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Callable
from typing import Any

import torch

import moewire
from moewire import _abi as abi
from moewire._cuda import engine
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
    """More dispatches than there are slots fail after their launch; the next ones succeed."""
    todo = [small(seed, 2, number) for number in range(10)]
    hows = ({}, {"return_recv_hook": True}, {"async_finish": True})
    with make(size_for(todo), device="cuda", copy_outputs=True) as buffer:
        gpu = buffer.runtime
        assert isinstance(gpu, engine.Cuda)
        release, statuses = gpu.release, list[int]()

        def spy(*args: Any) -> int:
            statuses.append(release(*args))
            return statuses[-1]

        gpu.release = spy  # type: ignore[method-assign]
        for number, case in enumerate(todo):
            x, topk = inputs(place, case, rank)
            try:
                buffer.dispatch(x, topk, None, 6, 4, TIMEOUT_US, False, **hows[number % 3])
            except MemoryError:
                if number % 3 == 2:
                    kept_aside(place, buffer, x, topk)
                place.synchronize()  # until then the error keeps what is written to
                place.synchronize(gpu.streams.side())
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


def kept_aside(place: Place, buffer: moewire.Buffer, *tensors: torch.Tensor) -> None:
    """The memory of these is not reused before the buffer's own stream has come so far."""
    gpu = buffer.runtime
    assert isinstance(gpu, engine.Cuda)
    side = place.handle(gpu.streams.side())
    found = {id(tensor) for tensor, number in place._kept if number == side}
    assert found >= {id(tensor) for tensor in tensors}, f"{len(found)} are kept"


def kept_after_failures(place: Place, make: Make, rank: int, seed: int) -> None:
    """A call's inputs on the buffer's own stream are kept, also if the call fails after the
    launch."""
    case = small(seed, 1)
    x, topk = inputs(place, case, 0)
    active = place.put(torch.ones(1, dtype=torch.int32))
    weights = place.put(torch.from_numpy(case.weights[0].copy()))
    extra = place.put(torch.ones((len(x), 3)))
    sizes = case.num_max, case.num_experts, TIMEOUT_US
    flat = {"num_max_dispatch_tokens_per_rank": 6, "num_experts": 2, "timeout_us": TIMEOUT_US}

    def fail(*args: Any) -> Any:
        raise MemoryError("no room behind the launch")

    def failing(call: Callable[..., Any], *given: torch.Tensor, **options: Any) -> None:
        place.synchronize()
        place.synchronize(side)
        whole, engine.Launched = engine.Launched, fail
        try:
            call(async_finish=True, **options)
        except MemoryError:
            kept_aside(place, buffer, *given)
            place.synchronize(side)  # until then the error keeps what is written to
        else:
            raise AssertionError("the call did not fail")
        finally:
            engine.Launched = whole

    with make(1 << 24, device="cuda") as buffer:
        side = buffer.runtime.side_stream()
        send = functools.partial(buffer.dispatch, x, topk, active, *sizes, False)
        failing(send, x, topk, active)
        failing(send, x, topk, active, weights, pre_reduce=True, topk_weights=weights)
        send_flat = functools.partial(buffer.dispatch_flat, x, topk, weights, **flat)
        options = {"active_ranks": active, "extra": [extra]}
        failing(send_flat, x, topk, weights, active, extra, **options)
        sent = send()
        y = place.put(torch.zeros((2, 6, case.hidden), dtype=torch.bfloat16))
        out = place.put(torch.zeros((len(x), case.hidden), dtype=torch.bfloat16))
        back = functools.partial(buffer.combine, y, topk, weights, active, TIMEOUT_US, sent[2])
        failing(back, y, topk, weights, active, out, out=out)
        received = send_flat()
        y = place.put(torch.zeros((received.num_recv_tokens, case.hidden), dtype=torch.bfloat16))
        back = functools.partial(buffer.combine_flat, y, received.handle, timeout_us=TIMEOUT_US)
        failing(back, y, active, out, active_ranks=active, out=out)
        place.synchronize()


def released_in_order(place: Place, make: Make, rank: int, seed: int) -> None:
    """A dropped handle is released after the operation that was launched last."""
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


def ordered_around_a_capture(place: Place, make: Make, rank: int, seed: int) -> None:
    """Running operations follow running ones, with recorded ones between them."""
    case = small(seed, 1)
    x, topk = inputs(place, case, 0)
    written: list[Any] = []
    followed: list[tuple[Any, Any]] = []
    follow = place.follow

    def spy(stream: Any, other: Any) -> None:
        followed.append((stream, other))
        follow(stream, other)

    first, second, recorded = place.side(), place.side(), place.side()
    with make(size_for([case]), device="cuda") as buffer:

        def call(stream: Any) -> list[tuple[Any, Any]]:
            """Dispatches and releases; which streams followed which other ones."""
            followed.clear()
            place.follow = spy  # type: ignore[method-assign]
            with place.on(stream):
                result = buffer.dispatch(x, topk, None, 6, 2, TIMEOUT_US, False)
                result[2].release()
            written.append(outputs_of(result))
            place.follow = follow  # type: ignore[method-assign]
            return followed

        last = first
        assert call(last) == []
        for later in (second, recorded, first):
            with place.on(recorded), place.captured(recorded) as graph:
                assert call(recorded) == [] and call(recorded) == []
            assert call(later) == [(later, last)] and call(later) == []
            last = later
            place.synchronize(later)
            place.destroy(graph[0])


class Recorded:
    """What a buffer does, in order: which stream follows which, and the library's calls."""

    CALLS = ("buffer_dispatch", "buffer_combine", "handle_release_on", "op_wait", "op_close")

    def __init__(self, place: Place, buffer: moewire.Buffer) -> None:
        self._place, self._runtime = place, buffer.runtime
        self._whole, self._follow = buffer.runtime.lib, place.follow
        self.first: Callable[[], None] | None = None  # is run in the middle of what comes first
        self.steps: list[Any] = []

    def __enter__(self) -> Recorded:
        self._runtime.lib = self  # type: ignore[assignment]
        self._place.follow = self._spy  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        self._runtime.lib = self._whole
        self._place.follow = self._follow  # type: ignore[method-assign]

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._whole, name)
        if name not in self.CALLS:
            return call

        def recorded(*args: Any) -> Any:
            self._interrupt()
            self.steps.append(name)
            return call(*args)

        return recorded

    def _spy(self, stream: Any, other: Any) -> None:
        self.steps.append((stream, other))
        if self.interrupt_calls:
            self._interrupt()
        self._follow(stream, other)

    interrupt_calls = True

    def _interrupt(self) -> None:
        first, self.first = self.first, None
        if first is not None:
            first()


def collected_in_a_launch(place: Place, make: Make, rank: int, seed: int) -> None:
    """A handle that is collected in the middle of a launch is released after it."""
    case = small(seed, 1)
    x, topk = inputs(place, case, 0)
    weights = place.put(torch.from_numpy(case.weights[0].copy()))
    y = place.put(torch.zeros((2, 6, case.hidden), dtype=torch.bfloat16))
    old, new = place.side(), place.side()
    given = (x, topk, None, 6, 2, TIMEOUT_US, False)
    written: list[Any] = []  # to be kept until the device has come past it

    def sent(buffer: moewire.Buffer, **how: bool) -> Any:
        result = buffer.dispatch(*given, **how)
        written.append(outputs_of(result))
        return result

    def again(buffer: moewire.Buffer, ready: list[Any]) -> None:
        sent(buffer)[2].release()

    def hook(buffer: moewire.Buffer, ready: list[Any]) -> None:
        ready[0][4]()

    def back(buffer: moewire.Buffer, ready: list[Any]) -> None:
        written.append(buffer.combine(y, topk, weights, None, TIMEOUT_US, ready[0][2]))

    def release(buffer: moewire.Buffer, ready: list[Any]) -> None:
        ready[0][2].release()

    def drop(buffer: moewire.Buffer, ready: list[Any]) -> None:
        ready.clear()

    # What is launched, which of the library's calls does it, and how its dispatch was made.
    launches: list[tuple[Any, str, dict[str, bool]]] = [
        (again, "buffer_dispatch", {}),
        (hook, "op_wait", {"return_recv_hook": True}),
        (back, "buffer_combine", {}),
        (release, "handle_release_on", {}),
        (drop, "handle_release_on", {"return_recv_hook": True}),
    ]
    with make(1 << 25, device="cuda", num_slots=4) as buffer:
        for launch, name, before in launches:
            for how in ({}, {"return_recv_hook": True}):
                for in_order in (True, False):
                    with place.on(new):
                        ready = [sent(buffer, **before)]
                    with place.on(old):
                        held = [sent(buffer, **how)]
                    with place.on(new), Recorded(place, buffer) as recorded:
                        recorded.interrupt_calls, recorded.first = in_order, held.clear
                        launch(buffer, ready)
                    assert not held
                    expected = [(new, old), name, (old, new), "handle_release_on"]
                    found = [one for one in recorded.steps if one != "op_close"][:4]
                    assert found == expected, (
                        f"{launch.__name__} {how} {in_order}: {recorded.steps}"
                    )
                    ready.clear()
                    place.synchronize(old)
                    place.synchronize(new)
                    written.clear()


def launched_alone(place: Place, make: Make, rank: int, seed: int) -> None:
    """No other thread can put an operation in order while one is launched."""
    case = small(seed, 1)
    with make(size_for([case]), device="cuda") as buffer:
        runtime = buffer.runtime
        assert isinstance(runtime, engine.Cuda)
        lock, free, whole = runtime.streams.lock, list[bool](), runtime.lib

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
    """A close that fails, at any call of the driver, is repeated. Returns how often one failed.

    The thread that watches the buffer enters the context, too, and may be the one that fails. Then
    no close failed, and the calls have another turn.
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
    """A buffer is closed when it is dropped, if its close has failed."""
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


def closed_by_two(place: Place, make: Make, rank: int, seed: int) -> None:
    """A close that waits for another thread's close tries again if that one fails."""
    before = _left(place)
    buffer = make(size_for([small(seed, 1)]), device="cuda")
    runtime = buffer.runtime
    whole, inside = runtime.lib, threading.Event()

    class Failing:
        """The library, which cannot close the buffer as long as it is asked for the first time."""

        first = True

        def __getattr__(self, name: str) -> Any:
            return self.close if name == "buffer_close" else getattr(whole, name)

        def close(self, buffer: Any) -> int:
            if inside.is_set():
                return abi.MW_ERR_HANDLE
            inside.set()
            other.join(0.5)  # it has come as far as it can
            runtime.lib = whole
            return abi.MW_ERR_DEVICE

    def close_too() -> None:
        inside.wait()
        buffer.close()

    other = threading.Thread(target=close_too)
    other.start()
    runtime.lib = Failing()  # type: ignore[assignment]
    expect(MoewireError, buffer.close)
    other.join()
    assert runtime._freed
    assert _left(place) == before, "the buffer was not closed"


def _left(place: Place) -> list[str]:
    """Without what a place makes for itself."""
    return [line for line in place.left() if not line.startswith(("streams", "events"))]
