"""Jobs that record dispatches and combines once and replay them: a rank per process."""

from __future__ import annotations

from typing import Any

import torch

import moewire
from moewire.errors import FencedError

from . import oracle, verify
from .cases import Case
from .jobs_cuda import TIMEOUT_US, Place, combine, dispatch, in_this_process, inputs, small
from .jobs_input import expect
from .jobs_oracle import size_for
from .member import Rank

# How long ranks wait for one that does nothing.
SHORT_US = 50_000


class Recorded:
    """Operations of one shape in one graph, each of which the experts send back as it came."""

    def __init__(
        self,
        place: Place,
        buffer: moewire.Buffer,
        case: Case,
        rank: int,
        length: int,
        wait_us: int,
        aside: bool = False,
    ) -> None:
        self.place, self.rank, self.stream = place, rank, place.side()
        self.x, self.topk = inputs(place, case, rank)
        self.weights = place.put(torch.from_numpy(case.weights[rank].copy()))
        self.active = place.put(torch.ones(case.num_ranks, dtype=torch.int32))
        self.outs: list[torch.Tensor] = []
        given = (self.x, self.topk, self.active, case.num_max, case.num_experts, wait_us, False)
        with place.on(self.stream), place.captured(self.stream) as graphs:
            for _ in range(length):
                if aside:
                    recv_x, _, handle, event, _ = buffer.dispatch(*given, async_finish=True)
                    event.current_stream_wait()
                else:
                    recv_x, _, handle, _, hook = buffer.dispatch(*given, return_recv_hook=True)
                    hook()
                back = (recv_x, self.topk, self.weights, self.active, wait_us, handle)
                out, event, _ = buffer.combine(*back, async_finish=aside)
                if aside:
                    event.current_stream_wait()
                self.outs.append(out)
        (self._graph,) = graphs

    def replay(self, case: Case, lost: int = -1) -> None:
        """With the inputs of a case; the experts of a lost rank contribute nothing."""
        rank = self.rank
        self.x.copy_(verify.bf16(case.x[rank]))
        self.topk.copy_(torch.from_numpy(case.topk[rank]))
        self.weights.copy_(torch.from_numpy(case.weights[rank]))
        self.place.synchronize()
        self.place.replay(self._graph, self.stream)
        self.place.synchronize(self.stream)
        topk = case.topk[rank].copy()
        topk[topk // case.num_local == lost] = -1
        given = dict.fromkeys(range(case.num_experts), case.x[rank])
        want = oracle.combine(topk, case.weights[rank], given, case.hidden)
        for number, out in enumerate(self.outs):
            verify.same(verify.bits(out), want, f"{case}: operation {number} on rank {rank}")

    def destroy(self) -> None:
        self.place.destroy(self._graph)


def _cases(rank: Rank, count: int) -> list[Case]:
    return [small(rank.seed, rank.size, number) for number in range(count)]


def _plain(place: Place, buffer: moewire.Buffer, case: Case, rank: int, how: Any) -> None:
    combine(place, buffer, dispatch(place, buffer, case, rank, how), how)


def replayed(rank: Rank, driver: str, lengths: list[int], times: int) -> int:
    """Graphs of several lengths, replayed in turn, with plain calls between them."""
    with in_this_process(driver, rank) as place:
        todo = _cases(rank, 5)
        with rank.buffer(size_for(todo), device="cuda") as buffer:
            _plain(place, buffer, todo[0], rank.rank, {})
            graphs = [
                Recorded(place, buffer, todo[0], rank.rank, length, TIMEOUT_US)
                for length in lengths
            ]
            for turn in range(times):
                for number, graph in enumerate(graphs):
                    graph.replay(todo[(turn + number) % len(todo)])
                if turn % 3 == 0:
                    how = {"return_recv_hook": turn % 2 == 0}
                    _plain(place, buffer, todo[turn % len(todo)], rank.rank, how)
            rank.meet("replayed")  # no rank ends while another one's graph runs
            for graph in graphs:
                graph.destroy()
    return times


def aside(rank: Rank, driver: str) -> None:
    """Recorded on the buffer's own stream, which takes part in the capture by events."""
    with in_this_process(driver, rank) as place:
        todo = _cases(rank, 4)
        with rank.buffer(size_for(todo), device="cuda") as buffer:
            _plain(place, buffer, todo[0], rank.rank, {"async_finish": True})
            graph = Recorded(place, buffer, todo[0], rank.rank, 3, TIMEOUT_US, aside=True)
            for case in todo:
                graph.replay(case)
                _plain(place, buffer, case, rank.rank, {"async_finish": True})
            rank.meet("replayed")
            graph.destroy()


def across_updates(rank: Rank, driver: str) -> None:
    """Operations recorded in one epoch run in the next ones."""
    with in_this_process(driver, rank) as place:
        todo = _cases(rank, 4)
        with rank.buffer(size_for(todo), device="cuda") as buffer:
            graph = Recorded(place, buffer, todo[0], rank.rank, 3, TIMEOUT_US)
            for epoch in range(3):
                graph.replay(todo[epoch])
                _plain(place, buffer, todo[epoch + 1], rank.rank, {})
                graph.replay(todo[epoch + 1])
                before = buffer.epoch
                buffer.update_ep_member()
                assert buffer.epoch > before
            graph.replay(todo[0])
            rank.meet("replayed")
            graph.destroy()


def stopped(rank: Rank, driver: str) -> None:
    """Rank 1 does nothing: a replay goes on without it at its deadline; it comes back later."""
    with in_this_process(driver, rank) as place:
        todo = _cases(rank, 4)
        with rank.buffer(size_for(todo), device="cuda") as buffer:
            whole = Recorded(place, buffer, todo[0], rank.rank, 2, TIMEOUT_US)
            brief = Recorded(place, buffer, todo[0], rank.rank, 2, SHORT_US)
            whole.replay(todo[1])
            rank.meet("whole")
            if rank.rank == 0:
                brief.replay(todo[2], lost=1)
                assert brief.active.tolist() == [1, 0] and buffer.members() == [0]
            rank.meet("brief")
            if rank.rank == 1:
                given = (brief.x, brief.topk, None, todo[0].num_max, todo[0].num_experts)
                expect(FencedError, lambda: buffer.dispatch(*given, TIMEOUT_US, False))
            buffer.update_ep_member()
            assert buffer.members() == [0, 1]
            whole.replay(todo[3])
            rank.meet("replayed")
            for graph in (whole, brief):
                graph.destroy()
