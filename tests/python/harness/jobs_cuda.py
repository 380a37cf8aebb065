"""Jobs over the emulated device: the real ``Buffer``, and CPU tensors in place of CUDA's."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist

import moewire
from moewire._config.device import CODE_VARIABLE
from moewire._cuda import torch_cuda
from moewire._cuda.report import DRIVER_VARIABLE

from . import cases, oracle, verify
from .cases import Case
from .cuda_device import CudaDevice
from .emulated import Emulated
from .jobs_input import expect
from .jobs_oracle import CALLS, size_for
from .member import Rank
from .torch_device import pretending

TIMEOUT_US = 600_000_000  # for tests that are not about late ranks
TIMEOUT_SECONDS = 300.0  # for a busy machine
Make = Callable[..., moewire.Buffer]
Place = Emulated | CudaDevice


def use(driver: str, folder: str, ordinal: int = 0) -> Emulated:
    """Puts the emulated driver where the machine's is looked for, in this process."""
    code = Path(folder) / "kernels"
    code.write_bytes(b"kernels\0")  # every module of the emulator has all kernels
    os.environ[DRIVER_VARIABLE], os.environ[CODE_VARIABLE] = driver, str(code)
    place = Emulated(Path(driver), ordinal=ordinal)
    torch_cuda.place = lambda ordinal: place
    return place


def use_device() -> CudaDevice:
    """The same for this machine's own driver."""
    place = CudaDevice()
    torch_cuda.place = lambda ordinal: place
    return place


def in_threads(size: int, job: Callable[[int, Make], Any]) -> list[Any]:
    """A rank per thread, each with a stream of its own; results by rank."""
    place: Any = torch_cuda.place(0)
    streams = [place.side() for _ in range(size)]
    store = dist.HashStore()
    results: list[Any] = [None] * size
    failures: list[BaseException] = []

    def run(rank: int) -> None:
        def make(num_bytes: int, **options: Any) -> moewire.Buffer:
            options.setdefault("connect_timeout_us", TIMEOUT_US)
            return moewire.Buffer.from_store(
                store, rank, size, num_bytes, prefix=options.pop("prefix", "x"), **options
            )

        try:
            with place.on(streams[rank]):
                results[rank] = job(rank, make)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + TIMEOUT_SECONDS
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    if failures:
        raise failures[0]
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    return results


class Received(verify.Received):
    """Within a source's block of an expert, rows have no order on CUDA; src_info has their tokens.

    ``ordered``: they lie in order of rank and token all the same. ``gaps``: as for the CPU.
    """

    def __init__(
        self, case: Case, rank: int, result: Any, ordered: bool = False, gaps: bool = False
    ) -> None:
        super().__init__(case, rank, result, gaps)
        self.ordered = ordered
        self.tokens: dict[tuple[int, int], np.ndarray] = {}

    def _check_expert(self, local: int, src_info: np.ndarray, layout: np.ndarray) -> None:
        case, covered = self.case, []
        expert = self.rank * case.num_local + local
        for source in range(case.num_ranks):
            begin, count = int(layout[source]) >> 32, int(layout[source]) & 0xFFFFFFFF
            block = slice(begin, begin + count)
            tokens = src_info[block].copy()
            want = oracle.tokens_for(case.topk[source], expert).astype(np.int32)
            found = tokens if self.ordered else np.sort(tokens)
            verify.same(found, want, f"{case}: src_info of {expert}")
            assert not (self.ordered and count) or begin == len(covered), f"{case}: order of ranks"
            self._check_rows(local, block, case.x[source][tokens], f"{case}: rows of {expert}")
            self.blocks[local, source], self.tokens[local, source] = block, tokens
            covered += range(begin, begin + count)
        self._check_covered(covered, int(self.recv_count[local]))

    def write_outputs(self, y: torch.Tensor) -> torch.Tensor:
        """Fills y as the experts would; rows that no rank sent become NaN."""
        make = verify._float32 if self.case.fp32_outputs else verify.bf16
        y.view(torch.int16).fill_(-1)
        for (local, source), block in self.blocks.items():
            expert = self.rank * self.case.num_local + local
            tokens = self.tokens[local, source]
            if len(tokens):
                y[local, block] = make(self.case.output(expert, source)[tokens])
        return y


def made(seed: int, count: int, size: int) -> list[Case]:
    """Random cases."""
    return [cases.make(seed, number, size) for number in range(count)]


def random_cases(
    place: Place, make: Make, rank: int, size: int, seed: int, count: int, ordered: bool = False
) -> int:
    """Every way to call, over random cases; gives the number of combines checked."""
    todo, checked = made(seed, count, size), 0
    with make(size_for(todo), device="cuda", deterministic=ordered) as buffer:
        for number, case in enumerate(todo):
            print(case)
            common = np.random.default_rng([seed, number, size, 21])
            own = np.random.default_rng([seed, number, rank, 22])
            how = CALLS[int(own.integers(3))]
            received = dispatch(place, buffer, case, rank, how, ordered=ordered)
            how = CALLS[int(own.integers(3))]
            combine(place, buffer, received, how, zero_copy=bool(own.integers(2)))
            checked += 1
            for _ in range(int(common.integers(2))):  # a handle may be combined again
                left_out = own.random(case.topk[rank].shape) < (0 if case.asks(rank) else 0.3)
                how = CALLS[int(own.integers(3))]
                again = bool(own.integers(2))
                combine(place, buffer, received, how, zero_copy=again, left_out=left_out)
                checked += 1
        place.synchronize()
    return checked


def dispatch(
    place: Place,
    buffer: moewire.Buffer,
    case: Case,
    rank: int,
    how: dict[str, bool],
    *,
    ordered: bool = False,
) -> verify.Received:
    """Dispatches this rank's share and checks what came."""
    x, topk = inputs(place, case, rank)
    active = place.put(torch.ones(case.num_ranks + 1, dtype=torch.int32))
    weights = None
    if case.asks(rank):
        weights = place.put(torch.from_numpy(case.weights[rank].copy()))
    result = buffer.dispatch(
        x,
        topk,
        active,
        case.num_max,
        case.num_experts,
        TIMEOUT_US,
        case.fp8,
        round_scale=case.round_scale,
        use_ue8m0=case.ue8m0,
        fp32_outputs=case.fp32_outputs,
        topk_weights=weights,
        pre_reduce=weights is not None,
        **how,
    )
    received = Received(case, rank, result, ordered)
    received.finish()
    place.synchronize()
    received.check()
    assert active.tolist() == [1] * (case.num_ranks + 1)
    return received


def combine(
    place: Place,
    buffer: moewire.Buffer,
    received: verify.Received,
    how: dict[str, bool],
    *,
    zero_copy: bool = False,
    left_out: np.ndarray | None = None,
) -> None:
    """Combines and checks every bit; ``left_out``: selections that this combine does without."""
    case, rank = received.case, received.rank
    # Until the device has come past them; torch's allocator sees to that for its own tensors.
    topk, weights = (
        place.put(torch.from_numpy(a.copy())) for a in (case.topk[rank], case.weights[rank])
    )
    if left_out is not None:
        topk[place.put(torch.from_numpy(left_out))] = -1
    if zero_copy:
        y = buffer.get_next_combine_buffer(received.handle)
        place.synchronize()  # others may still read what was combined before
        received.write_outputs(y)
    else:
        y = place.put(received.new_outputs())
    out, event, hook = buffer.combine(
        y,
        topk,
        weights,
        None,
        TIMEOUT_US,
        received.handle,
        zero_copy,
        **how,
    )
    if hook is not None:
        hook()
    if event.event is not None:
        event.current_stream_wait()
    place.synchronize()
    chosen, factors = topk.cpu().numpy(), weights.cpu().numpy()
    sent = (chosen, factors, case.outputs_for(rank), case.hidden)
    if case.asks(rank):
        want = oracle.combine_by_rank(*sent, case.num_local)
    else:
        want = oracle.combine(*sent)
    verify.same(verify.bits(out), want, f"{case}: combine on rank {rank}")


def in_process(rank: Rank, driver: str, count: int) -> int:
    """``random_cases`` where each rank is a process."""
    with in_this_process(driver, rank) as place:
        return random_cases(place, rank.buffer, rank.rank, rank.size, rank.seed, count)


def in_process_by_fabric(rank: Rank, driver: str, count: int) -> int:
    """The same where memory gets into other processes by fabric handles alone."""

    def make(*args: Any, **options: Any) -> moewire.Buffer:
        buffer = rank.buffer(*args, **options)
        words = ["memory mapped by fabric handle"] * rank.size
        words[rank.rank] = "its own memory"
        assert [path["why"] for path in buffer.paths()] == words
        return buffer

    ways = {"EMULATOR_FABRIC": "1", "EMULATOR_NO_FD": "1"}
    with patch.dict(os.environ, ways), in_this_process(driver, rank) as place:
        return random_cases(place, make, rank.rank, rank.size, rank.seed, count)


def in_process_on_its_device(rank: Rank, driver: str, count: int, without: str) -> int:
    """The same where each rank has a device of its own, some pairs ``without`` native atomics."""

    def make(num_bytes: int, device: str, **options: Any) -> moewire.Buffer:
        buffer = rank.buffer(num_bytes, device=f"{device}:{rank.rank}", **options)
        said = str(buffer.paths())
        assert ("native atomics" in said) == bool(without), said
        return buffer

    devices = {"EMULATOR_DEVICES": str(rank.size)}
    if without:  # to be set is enough for additions to be none
        devices["EMULATOR_NO_ATOMICS"] = without
    with patch.dict(os.environ, devices), in_this_process(driver, rank, rank.rank) as place:
        return random_cases(place, make, rank.rank, rank.size, rank.seed, count)


@contextmanager
def in_this_process(driver: str, rank: Rank, ordinal: int = 0) -> Iterator[Place]:
    """Its device: the emulated one, or torch's if no driver is named."""
    before = torch_cuda.place
    try:
        with pretending() if driver else nullcontext():
            yield use(driver, rank.folder, ordinal) if driver else use_device()
    finally:
        torch_cuda.place = before
        for name in (DRIVER_VARIABLE, CODE_VARIABLE):
            os.environ.pop(name, None)


def inputs(place: Place, case: Case, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """x and topk_idx of a rank, on the device."""
    x, topk = verify.bf16(case.x[rank]), torch.from_numpy(case.topk[rank].copy())
    return place.put(x), place.put(topk)


def small(seed: int, size: int, number: int = 0) -> Case:
    case = Case(size, 2 * size, 2, 128, 6, False, "uniform", (seed, 500 + number, size))
    return cases.fill(case, [6 - rank % 3 for rank in range(size)])


def outlived(place: Place, make: Make, rank: int, seed: int) -> None:
    """Tensors over the workspace are there after close, and the memory goes with the last."""
    case = small(seed, 2)
    buffer = make(size_for([case]), device="cuda:0")
    received = dispatch(place, buffer, case, rank, {})
    combine(place, buffer, received, {}, zero_copy=True)
    before = verify.bits(received.recv_x).copy()
    buffer.close()
    verify.same(verify.bits(received.recv_x), before, "rows after close")
    for method in ("members", "counters"):
        try:
            getattr(buffer, method)()
        except moewire.ClosedError:
            continue
        raise AssertionError(f"{method} of a closed buffer")


def copied(place: Place, make: Make, rank: int, seed: int) -> None:
    """Ordinary tensors; the emulated device has to be done when torch copies."""
    case = small(seed, 2)
    with make(size_for([case]), device="cuda", copy_outputs=True) as buffer:
        x, topk = inputs(place, case, rank)
        how = {"use_fp8": False, "return_recv_hook": True}
        plain = buffer.dispatch(x, topk, None, case.num_max, 4, TIMEOUT_US, **how)
        with place.waiting():
            plain[4]()
        received = Received(case, rank, plain)
        place.synchronize()
        received.check()
        combine(place, buffer, received, {})


def two_streams(place: Place, make: Make, rank: int, seed: int) -> None:
    """Calls of one rank on several streams, in the order in which they were made."""
    todo = [small(seed, 2, number) for number in range(6)]
    streams = [place.side(), place.side()]
    with make(size_for(todo), device="cuda") as buffer:
        for number, case in enumerate(todo):
            with place.on(streams[number % 2]):
                received = dispatch(place, buffer, case, rank, CALLS[number % 3])
            with place.on(streams[(number + 1) % 2]):
                combine(place, buffer, received, CALLS[(number + 1) % 3])


def outputs_of(result: Any) -> tuple[Any, ...]:
    """What the device writes: a caller that drops a dispatch's result earlier has to keep it.

    On a device torch's allocator keeps such memory for the stream.
    """
    handle = result[2]
    return (result[1], handle[1], handle._answer)


def dropped(place: Place, make: Make, rank: int, seed: int) -> None:
    """A hook that is not called, a handle that is not combined: the slots come back."""
    todo = [small(seed, 2, number) for number in range(6)]
    with make(size_for(todo), device="cuda") as buffer:
        for number, case in enumerate(todo):
            x, topk = inputs(place, case, rank)
            how = CALLS[number % 2]
            result = buffer.dispatch(x, topk, None, 6, 4, TIMEOUT_US, False, **how)
            if number % 3 == 2:
                result[2].release()
                result[2].release()
            written = outputs_of(result)
            del result
            place.synchronize()
            del written
        received = dispatch(place, buffer, todo[0], rank, {})
        combine(place, buffer, received, {})


def recorded(place: Place, make: Make, rank: int, seed: int, together: threading.Barrier) -> None:
    """Dispatch and combine of one graph, replayed with other inputs in the same tensors.

    While a stream is captured, no thread of the process may make a call that waits: ranks take
        turns.
    """
    todo = [small(seed, 2, number) for number in range(4)]
    with make(size_for(todo), device="cuda") as buffer:
        warm = dispatch(place, buffer, todo[0], rank, {})
        combine(place, buffer, warm, {})
        case, stream = todo[1], place.side()
        x, topk = inputs(place, case, rank)
        weights = place.put(torch.from_numpy(case.weights[rank].copy()))
        for turn in range(together.parties):
            together.wait(TIMEOUT_SECONDS)
            if turn != rank:
                continue
            with place.on(stream), place.captured(stream) as graph:
                result = buffer.dispatch(
                    x, topk, None, 6, 4, TIMEOUT_US, False, return_recv_hook=True
                )
                result[4]()
                # The expert returns its input.
                out, _, _ = buffer.combine(result[0], topk, weights, None, TIMEOUT_US, result[2])
        together.wait(TIMEOUT_SECONDS)
        for case in todo[1:]:
            x.copy_(verify.bf16(case.x[rank]))
            topk.copy_(torch.from_numpy(case.topk[rank]))
            weights.copy_(torch.from_numpy(case.weights[rank]))
            place.synchronize()
            place.replay(graph[0], stream)
            place.synchronize(stream)
            given = dict.fromkeys(range(case.num_experts), case.x[rank])
            want = oracle.combine(case.topk[rank], case.weights[rank], given, case.hidden)
            verify.same(verify.bits(out), want, f"{case}: replayed on rank {rank}")
        together.wait(TIMEOUT_SECONDS)
        place.destroy(graph[0])


def more_rounds(
    place: Place, make: Make, rank: int, seed: int, together: threading.Barrier
) -> None:
    """Every rank learns whether any rank has more: at once, after its release, of a graph."""
    case, stream = small(seed, 2), place.side()
    x, topk = inputs(place, case, rank)
    weights = place.put(torch.from_numpy(case.weights[rank].copy()))
    kept: list[Any] = []  # what the device writes to: torch's allocator would keep it
    with make(size_for([case]), device="cuda") as buffer:

        def ask(more: set[int], flat: bool, **how: bool) -> Any:
            common = {"more": rank in more, **how}
            if flat:
                sizes = case.num_max, case.num_experts
                got = buffer.dispatch_flat(
                    x, topk, weights, *sizes, timeout_us=TIMEOUT_US, **common
                )
                kept.append(got)
                return got.handle
            given = (x, topk, None, case.num_max, case.num_experts, TIMEOUT_US, False)
            kept.append(buffer.dispatch(*given, **common))
            return kept[-1][2]

        for flat in (False, True):
            for more in ({0}, {1}, {0, 1}, set[int]()):
                for how in ({}, {"async_finish": True}, {"return_recv_hook": True}):
                    handle = ask(more, flat, **how)
                    assert handle.peers_have_more is bool(more)
                    handle.release()
            late = ask({1}, flat)
            late.release()
            for _ in range(3):  # others take its slot
                ask(set(), flat).release()
            assert late.peers_have_more is True
            for turn in range(together.parties):  # see ``recorded``
                together.wait(TIMEOUT_SECONDS)
                if turn != rank:
                    continue
                with place.on(stream), place.captured(stream) as graph:
                    text = expect(moewire.UnsupportedError, lambda late=late: late.peers_have_more)
                    assert "ask peers_have_more before the capture" in text
                    again = ask({0}, flat)
            together.wait(TIMEOUT_SECONDS)
            place.replay(graph[0], stream)
            assert again.peers_have_more is True
            together.wait(TIMEOUT_SECONDS)
            place.destroy(graph[0])


def debug_fill(place: Place, make: Make, rank: int, seed: int) -> None:
    """MOEWIRE_DEBUG=1: a dispatch begins with memory that is NaN, also where an earlier one's
    was."""
    case, slots = small(seed, 2), 2
    with make(size_for([case]), device="cuda", num_slots=slots) as buffer:
        first = dispatch(place, buffer, case, rank, {})
        combine(place, buffer, first, {}, zero_copy=True)
        first.handle.release()
        for _ in range(slots):  # the last one takes the slot of the first
            received = dispatch(place, buffer, case, rank, {})
            y = buffer.get_next_combine_buffer(received.handle)
            assert torch.isnan(y.float()).all()
            for expert, count in enumerate(received.recv_count.tolist()):
                assert torch.isnan(received.recv_x[expert, count:].float()).all(), expert
                assert (received.handle[0][expert, count:] == -1).all(), expert
            combine(place, buffer, received, {}, zero_copy=True)
        for expert, count in enumerate(received.recv_count.tolist()):
            assert torch.isnan(first.recv_x[expert, count:].float()).all(), expert
