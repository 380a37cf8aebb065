"""Jobs about unplanned ends: twice, in two threads, by an exception half way."""

from __future__ import annotations

import gc
import threading

import moewire

from . import verify
from .jobs_input import case_for, expect
from .member import Rank


def closed_twice(rank: Rank) -> None:
    """close() again does nothing, in any thread; calls say that the buffer is closed."""
    with rank.buffer() as buffer:
        received = verify.dispatch(buffer, case_for(rank), rank.rank)
        verify.combine(buffer, received)
        rank.meet("combined")
        closers = [threading.Thread(target=buffer.close) for _ in range(4)]
        for one in closers:
            one.start()
        for one in closers:
            one.join()
        buffer.close()
        expect(moewire.ClosedError, lambda: verify.dispatch(buffer, case_for(rank), rank.rank))
        expect(moewire.ClosedError, lambda: verify.combine(buffer, received))
        expect(moewire.ClosedError, buffer.counters)
        expect(moewire.ClosedError, buffer.members)
        received.handle.release()


class _Half(Exception):
    """What the experts of a rank might raise."""


def _fails_half_way(buffer: moewire.Buffer, rank: Rank) -> None:
    verify.dispatch(buffer, case_for(rank), rank.rank)
    raise _Half


def fails_half_way(rank: Rank) -> None:
    """An exception between dispatch and combine drops the handle; ranks that combine are told."""
    with rank.buffer() as buffer:
        for _ in range(3):
            if rank.rank == 1:
                expect(_Half, lambda: _fails_half_way(buffer, rank))
                gc.collect()
            else:
                received = verify.dispatch(buffer, case_for(rank), 0)
                text = expect(
                    moewire.NotCombinedError, lambda r=received: verify.combine(buffer, r)
                )
                assert "rank 1" in text, text
                received.handle.release()
            for _ in range(3):
                verify.combine(buffer, verify.dispatch(buffer, case_for(rank), rank.rank))
        rank.meet("end")


def all_fail_half_way(rank: Rank) -> None:
    """No rank combines: every slot comes back, many times over."""
    with rank.buffer(num_slots=2) as buffer:
        for _ in range(10):
            expect(_Half, lambda: _fails_half_way(buffer, rank))
            gc.collect()
        verify.combine(buffer, verify.dispatch(buffer, case_for(rank), rank.rank))
        rank.meet("end")
