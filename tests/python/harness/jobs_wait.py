"""Jobs about waiting: which rank waits for which, and which does not."""

from __future__ import annotations

import os
import signal
import threading
import time

import torch

import moewire

from . import verify
from .jobs_input import case_for, expect
from .member import Rank


def inactive_rank(rank: Rank) -> None:
    """A rank that the caller leaves out gets nothing, gives nothing, and is not waited for."""
    case = case_for(rank)
    away = rank.size - 1
    mask = torch.ones(rank.size, dtype=torch.int32)
    mask[away] = 0
    with rank.buffer(16 << 20) as buffer:
        if rank.rank != away:
            case.topk[away][:] = -1
            x, topk = verify.bf16(case.x[rank.rank]), torch.from_numpy(case.topk[rank.rank])
            result = buffer.dispatch(x, topk, mask, 8, case.num_experts, 30_000_000, False)
            received = verify.Received(case, rank.rank, result, gaps=verify.LOST_LEAVE_GAPS)
            received.check()
            weights = torch.from_numpy(case.weights[rank.rank])
            y = received.new_outputs()
            out, _, _ = buffer.combine(y, topk, weights, mask, 30_000_000, received.handle)
            left = case.topk[rank.rank].copy()
            left[left // case.num_local == away] = -1
            want = case.combined(rank.rank, left, case.weights[rank.rank])
            verify.same(verify.bits(out), want, "combine without one rank")
            assert mask.tolist() == [1] * away + [0]
        rank.meet("end")


def waits_do_not_block(rank: Rank) -> None:
    """While one thread waits, another uses the same buffer."""
    with rank.buffer(16 << 20) as buffer:
        case = case_for(rank)
        if rank.rank == 0:
            first = verify.dispatch(buffer, case, 0, return_recv_hook=True)
            waiter = threading.Thread(target=first.hook)
            waiter.start()
            time.sleep(0.1)
            start = time.monotonic()
            buffer.counters()
            second = verify.dispatch(buffer, case, 0, return_recv_hook=True)
            assert time.monotonic() - start < 5
            assert waiter.is_alive()
            rank.meet("waiting")
            waiter.join()
            second.hook()
        else:
            rank.meet("waiting")
            first, second = (verify.dispatch(buffer, case, 1) for _ in range(2))
        for received in (first, second):
            received.check()
            verify.combine(buffer, received)


def combine_buffer_still_read(rank: Rank) -> None:
    """get_next_combine_buffer waits for readers of an earlier combine, with a deadline."""
    with rank.buffer(16 << 20) as buffer:
        case = case_for(rank)
        for source in range(rank.size):
            case.topk[source] %= case.num_local  # all experts of rank 0
        received = verify.dispatch(buffer, case, rank.rank)
        if rank.rank == 0:
            verify.combine(buffer, received, zero_copy=True)
            text = expect(
                moewire.DeadlineError,
                lambda: buffer.get_next_combine_buffer(received.handle, timeout_us=150_000),
            )
            assert "combine buffer" in text
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            expect(KeyboardInterrupt, lambda: buffer.get_next_combine_buffer(received.handle))
            rank.meet("interrupted")
        else:
            rank.meet("interrupted")
            verify.combine(buffer, received)
        verify.combine(buffer, received, zero_copy=True)


def threads_on_buffers(rank: Rank) -> None:
    """Each thread has its own buffer; nothing is shared between them but the process."""
    failures: list[BaseException] = []

    def work(buffer: moewire.Buffer, number: int) -> None:
        try:
            for step in range(10):
                case = case_for(rank, 10 * number + step)
                verify.combine(buffer, verify.dispatch(buffer, case, rank.rank))
        except BaseException as error:
            failures.append(error)

    buffers = [rank.buffer(name=f"thread{number}") for number in range(3)]
    threads = [threading.Thread(target=work, args=(b, n)) for n, b in enumerate(buffers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rank.meet("end")
    for buffer in buffers:
        buffer.close()
    if failures:
        raise failures[0]


def ready(rank: Rank) -> None:
    """Does nothing."""


def outlives_rank_0(rank: Rank) -> None:
    """Rank 0 never ends by itself; rank 1 says so when it is gone, and stays."""
    number = os.path.join(rank.folder, "pid")
    if rank.rank == 0:
        with open(number + "-new", "w") as file:
            file.write(str(os.getpid()))
        os.rename(number + "-new", number)
    while rank.rank == 0 or not os.path.exists(number):
        time.sleep(0.001)
    with open(number) as file:
        other = int(file.read())
    while True:
        try:
            os.kill(other, 0)
            time.sleep(0.0005)
        except ProcessLookupError:
            print("rank 1 went on without rank 0")
            time.sleep(600)
