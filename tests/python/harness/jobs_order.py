"""Jobs about the order of calls: two in flight, repeated, abandoned, far ahead."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time

import moewire

from . import cases, verify
from .cases import Case
from .jobs_oracle import CALLS, size_for
from .member import Rank


def small(rank: Rank, number: int) -> Case:
    fp8, size = number % 2 == 1, rank.size
    tokens = [int(rank.random(number, s).integers(0, 7)) for s in range(size)]
    routing = cases.ROUTINGS[number % len(cases.ROUTINGS)]
    case = Case(size, size * 2, 3, 128, 6, fp8, routing, (rank.seed, 500 + number))
    return cases.fill(case, tokens)


def pattern(rank: Rank, letters: str, num_slots: int = 2, rounds: int = 4) -> None:
    """``d``: dispatch; ``c``: combine the oldest not yet combined; ``C``: combine the last one
    again; ``r``: release the oldest not yet combined."""
    # Dispatches alone take one another's slots.
    with rank.buffer(num_slots=num_slots, overwrites_held=letters == "d") as buffer:
        waiting: list[verify.Received] = []
        last: verify.Received | None = None
        for number, letter in enumerate(letters * rounds, 1):
            how = CALLS[number % len(CALLS)]
            if letter == "d":
                waiting.append(verify.dispatch(buffer, small(rank, number), rank.rank, **how))
                waiting[-1].finish()
                waiting[-1].check()
            elif letter == "c":
                last = waiting.pop(0)
                verify.combine(buffer, last, zero_copy=number % 2 == 0, **how)
            elif letter == "C":
                assert last is not None
                verify.combine(buffer, last, zero_copy=number % 2 == 1, **how)
            elif letter == "r":
                waiting.pop(0).handle.release()


def hooks_in_flight(rank: Rank) -> None:
    """Two hooks open at once, run in either order; a combine runs the one that was not."""
    with rank.buffer() as buffer:
        for number in range(8):
            first = verify.dispatch(buffer, small(rank, number), rank.rank, return_recv_hook=True)
            second = verify.dispatch(
                buffer, small(rank, number + 50), rank.rank, return_recv_hook=True
            )
            pair = (first, second) if number % 2 else (second, first)
            for received in pair[: number % 3]:
                received.hook()
                received.hook()  # twice is once
            for received in (first, second):
                buffer.get_next_combine_buffer(received.handle)  # finishes the receive
                received.check()
                verify.combine(buffer, received, return_recv_hook=True)


def dropped_hook(rank: Rank) -> None:
    """A combine runs a receive hook that was not run."""
    case = small(rank, 0)
    with rank.buffer() as buffer:
        received = verify.dispatch(buffer, case, rank.rank, return_recv_hook=True)
        received.hook = None
        received.handle.finish()
        received.check()
        verify.combine(buffer, received)


def hook_from_many_threads(rank: Rank) -> None:
    """The hook is idempotent and thread-safe."""
    with rank.buffer() as buffer:
        for number in range(10):
            received = verify.dispatch(
                buffer, small(rank, number), rank.rank, return_recv_hook=True
            )
            threads = [threading.Thread(target=received.hook) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            received.check()
            verify.combine(buffer, received)


def abandoned_on_one(rank: Rank, how: str) -> str:
    """Rank 0 dispatches and never combines; the others get an error that names it."""
    with rank.buffer() as buffer:
        case = cases.fill(
            Case(rank.size, rank.size, rank.size, 64, 4, False, "uniform", (rank.seed, 3)),
            [4] * rank.size,
        )
        received = verify.dispatch(buffer, case, rank.rank)
        text = ""
        if rank.rank == 0:
            _abandon(received, how)
        else:
            try:
                verify.combine(buffer, received)
            except moewire.NotCombinedError as error:
                text = str(error)
        for number in range(6):
            again = verify.dispatch(buffer, small(rank, number), rank.rank)
            verify.combine(buffer, again)
        return text


def _abandon(received: verify.Received, how: str) -> None:
    if how == "release":
        received.handle.release()
        received.handle.release()
    elif how == "with":
        with received.handle:
            pass
    else:
        received.handle = None


def abandoned_by_later_dispatches(rank: Rank) -> None:
    """No rank releases or combines: by upstream's rule a dispatch takes the slot."""
    with rank.buffer(overwrites_held=True) as buffer:
        kept = [verify.dispatch(buffer, small(rank, number), rank.rank) for number in range(9)]
        for received in kept[:-2]:
            with contextlib.suppress(moewire.StaleHandleError):
                verify.combine(buffer, received)
                raise AssertionError("a stale handle was combined")
        verify.combine(buffer, kept[-1])


def remote_ahead(rank: Rank) -> None:
    """One rank is slow; the others run ahead as far as the slots allow."""
    with rank.buffer(num_slots=4) as buffer:
        for number in range(40):
            if rank.rank == number % rank.size:
                time.sleep(0.01)
            received = verify.dispatch(buffer, small(rank, number), rank.rank)
            verify.combine(buffer, received)


def _resources() -> tuple[int, int, int]:
    with open("/proc/self/statm") as statm:
        resident = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), resident


def soak(rank: Rank, pairs: int) -> dict[str, list[int]]:
    """Pairs in all orders, some abandoned, with random delays; every result is checked."""
    pool = [small(rank, number) for number in range(24)]
    prepared = [_Prepared(case, rank.rank) for case in pool]
    delays = random.Random(rank.seed * 100 + rank.rank)
    common = random.Random(rank.seed)
    marks: list[tuple[int, int, int]] = []
    done = 0
    with rank.buffer(size_for(pool)) as buffer:
        while done < pairs:
            order = common.choice(("dc", "dc", "ddcc", "dcdc", "dd-c", "d-"))
            open_pairs: list[tuple[_Prepared, verify.Received]] = []
            for letter in order:
                if delays.random() < 0.01:
                    time.sleep(delays.random() * 0.004)
                if letter == "d":
                    prepared_case = common.choice(prepared)
                    open_pairs.append((prepared_case, prepared_case.dispatch(buffer)))
                elif letter == "c":
                    chosen, received = open_pairs.pop(0)
                    chosen.combine(buffer, received)
                    done += 1
                else:
                    open_pairs.pop(0)[1].handle.release()
            if done >= pairs * (len(marks) + 2) // 10:
                marks.append(_resources())
    names = ("descriptors", "threads", "resident")
    return {name: [mark[i] for mark in marks] for i, name in enumerate(names)}


class _Prepared:
    """A case with expected results that are computed once, to keep the soak test fast."""

    def __init__(self, case: Case, rank: int) -> None:
        self.case, self.rank = case, rank
        self.want = case.combined(rank, case.topk[rank], case.weights[rank])
        self._outputs: dict[int, object] = {}

    def dispatch(self, buffer: moewire.Buffer) -> verify.Received:
        return verify.dispatch(buffer, self.case, self.rank)

    def combine(self, buffer: moewire.Buffer, received: verify.Received) -> None:
        import torch

        case, rank = self.case, self.rank
        y = received.write_outputs(buffer.get_next_combine_buffer(received.handle))
        out, _, _ = buffer.combine(
            y,
            torch.from_numpy(case.topk[rank]),
            torch.from_numpy(case.weights[rank]),
            None,
            30_000_000,
            received.handle,
            zero_copy=True,
        )
        verify.same(verify.bits(out), self.want, f"{case}: combine on rank {rank}")
