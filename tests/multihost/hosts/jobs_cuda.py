"""Jobs of ranks on several hosts that have their buffers on CUDA."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL
from typing import Any

import numpy as np
import torch

import moewire
from harness import cases, flat, jobs_cuda, jobs_cuda_flat, oracle, verify
from harness.cases import Case
from harness.freezing import freeze, while_frozen
from harness.jobs_cuda import Place, inputs
from harness.jobs_cuda_graphs import Recorded
from harness.jobs_input import expect
from harness.jobs_observe import Heard
from harness.jobs_oracle import size_for
from harness.member import Rank

from .jobs import shell

# Only a rank that never comes exceeds these bounds: kernels run on busy processors.
MAX_WAIT_US = 600_000_000
SHORT_US = 50_000
# An unresponsiveness timeout that only a cut exceeds, on a busy machine.
CUT_US = 10_000_000
# Messages that hold few rows.
RING_BYTES = 1 << 14

FORMS: tuple[dict[str, Any], ...] = (
    {"routing": "duplicates"},
    {"fp8": True, "hidden": 512, "round_scale": True, "ue8m0": True},
    {"fp32_outputs": True, "wild": True, "routing": "holes"},
    {"fp8": True, "routing": "one expert"},
    {"pre_reduce": "some", "fp32_outputs": True},
    {"pre_reduce": "all", "fp8": True, "round_scale": True},
)


@contextmanager
def device(driver: str, rank: Rank) -> Iterator[Place]:
    """The device of this process, with deadlines for a busy machine."""
    before = jobs_cuda.TIMEOUT_US
    jobs_cuda.TIMEOUT_US = MAX_WAIT_US
    try:
        with jobs_cuda.in_this_process(driver, rank) as place:
            yield place
    finally:
        jobs_cuda.TIMEOUT_US = before


def cuda_buffer(rank: Rank, todo: Sequence[Case], **options: Any) -> moewire.Buffer:
    """A buffer on CUDA; heartbeats may be late, too, unless the test is about silence."""
    options = {"unresponsive_after_us": MAX_WAIT_US, "connect_timeout_us": 120_000_000, **options}
    return rank.buffer(size_for(list(todo)), device="cuda", **options)


def _case(rank: Rank, number: int, **form: Any) -> Case:
    asks = {"some": tuple(r % 2 == 0 for r in range(rank.size)), "all": (True,) * rank.size}
    form = {"fp8": False, "hidden": 128, "routing": "uniform", **form}
    form["pre_reduce"] = asks.get(form.get("pre_reduce", ""), ())
    salt = (rank.seed, 700 + number, rank.size)
    case = Case(rank.size, 2 * rank.size, 3, num_max=7, salt=salt, **form)
    return cases.fill(case, [(7, 0, 5, 2)[(number + r) % 4] for r in range(rank.size)])


def _exchange(
    place: Place,
    buffer: moewire.Buffer,
    case: Case,
    rank: int,
    how: int = 0,
    *,
    ordered: bool = False,
) -> None:
    first, second = (jobs_cuda.CALLS[(how + n) % 3] for n in range(2))
    received = jobs_cuda.dispatch(place, buffer, case, rank, first, ordered=ordered)
    jobs_cuda.combine(place, buffer, received, second, zero_copy=how > 0)


def _exchange_flat(
    place: Place, buffer: moewire.Buffer, case: Case, rank: int, number: int
) -> None:
    """Exchanges flat rows with a column, twice by the same routing."""
    first, second = (jobs_cuda.CALLS[(number + n) % 3] for n in range(2))
    kind = number % len(flat.EXTRAS)
    received = jobs_cuda_flat.received_flat(place, buffer, case, rank, first, kind)
    jobs_cuda_flat.combine_flat(place, buffer, received, second, zero_copy=number > 0)
    handle = received.got.handle
    again = jobs_cuda_flat.received_flat(place, buffer, case, rank, second, kind, handle)
    jobs_cuda_flat.combine_flat(place, buffer, again, first)


def results(rank: Rank, driver: str, ring_bytes: int, how: str = "") -> list[dict[str, Any]]:
    """Compares all forms with the oracle, bit for bit; returns how the others were reached.

    ``how``: "" is rows per expert, "ordered" is these rows in deterministic order, "flat" flat
    rows.
    """
    todo = [_case(rank, number, **form) for number, form in enumerate(FORMS)]
    options = {"ring_bytes": ring_bytes, "deterministic": how == "ordered"}
    with device(driver, rank) as place, cuda_buffer(rank, todo, **options) as buffer:
        for number, case in enumerate(todo):
            print(case)
            if how == "flat":
                _exchange_flat(place, buffer, replace(case, pre_reduce=()), rank.rank, number)
            else:
                _exchange(place, buffer, case, rank.rank, number, ordered=how == "ordered")
        found = buffer.paths()
        _check_links(buffer, rank, found)
        rank.meet("end")
    return found


def _check_links(buffer: moewire.Buffer, rank: Rank, paths: list[dict[str, Any]]) -> None:
    """Statistics count the messages of kernels as they count those of the CPU."""
    remote = [path["rank"] for path in paths if path["carrier"] == "tcp"]
    links = buffer.stats()["remote"]["links"]
    assert [link["rank"] for link in links] == remote, (links, remote)
    for link in links:
        assert link["state"] == "up" and link["carrier"] == "tcp", link
        # At least one in each dispatch, whether there are rows or not.
        for name in ("num_messages_sent", "num_messages_received"):
            assert link[name] >= len(FORMS), link


def as_on_the_processor(rank: Rank, driver: str) -> None:
    """Sums of the same outputs have the same bits as on the CPU, wherever ranks are."""
    case = _case(rank, 40, routing="duplicates")
    with device(driver, rank) as place, cuda_buffer(rank, [case]) as buffer:
        received = jobs_cuda.dispatch(place, buffer, case, rank.rank, {})
        topk = place.put(torch.from_numpy(case.topk[rank.rank].copy()))
        weights = place.put(torch.from_numpy(case.weights[rank.rank].copy()))
        y = place.put(received.new_outputs())
        out = buffer.combine(y, topk, weights, None, MAX_WAIT_US, received.handle)[0]
        place.synchronize()
        with rank.buffer(size_for([case]), name="cpu") as other:
            want = verify.combine(other, verify.dispatch(other, case, rank.rank))
            verify.same(verify.bits(out), want, "as on the CPU")
            rank.meet("end")


def replayed(rank: Rank, driver: str) -> None:
    """Graphs with messages in them, between plain calls and across an update."""
    todo = [jobs_cuda.small(rank.seed, rank.size, number) for number in range(4)]
    with device(driver, rank) as place, cuda_buffer(rank, todo) as buffer:
        _exchange(place, buffer, todo[0], rank.rank)
        graphs = [
            Recorded(place, buffer, todo[0], rank.rank, length, MAX_WAIT_US) for length in (1, 3)
        ]
        for turn, case in enumerate(todo):
            for graph in graphs:
                graph.replay(case)
            _exchange(place, buffer, todo[turn], rank.rank)
            if turn == 1:
                buffer.update_ep_member()
        rank.meet("replayed")  # no rank ends while a graph of another rank runs
        for graph in graphs:
            graph.destroy()


class _Gaps(jobs_cuda.Received):
    """There may be rows that a lost rank had reserved, and that no layout entry covers."""

    def _check_expert(self, local: int, src_info: Any, layout: Any) -> None:
        begins = [(int(one) >> 32, int(one) & 0xFFFFFFFF) for one in layout]
        covered = [row for begin, count in begins for row in range(begin, begin + count)]
        assert set(covered) <= set(range(int(self.recv_count[local]))), layout
        assert len(set(covered)) == len(covered), layout
        for source, (begin, count) in enumerate(begins):
            block = slice(begin, begin + count)
            expert = self.rank * self.case.num_local + local
            tokens = src_info[block].copy()
            verify.same(
                np.sort(tokens),
                oracle.tokens_for(self.case.topk[source], expert).astype(np.int32),
                f"{self.case}: src_info of {expert}",
            )
            self._check_rows(local, block, self.case.x[source][tokens], f"rows of {expert}")
            self.blocks[local, source], self.tokens[local, source] = block, tokens


def step(
    place: Place, buffer: moewire.Buffer, rank: Rank, number: int, timeout_us: int = MAX_WAIT_US
) -> set[int]:
    """A dispatch and a combine, during which ranks may be lost; returns the lost ranks.

    The results have the data of the ranks in the mask after each call, and nothing else.
    """
    case = _case(rank, number)
    own, full = rank.rank, case.topk[rank.rank].copy()
    x, topk = inputs(place, case, own)
    weights = place.put(torch.from_numpy(case.weights[own].copy()))
    active = place.put(torch.ones(rank.size, dtype=torch.int32))
    given = (x, topk, active, case.num_max, case.num_experts, timeout_us, False)
    result = buffer.dispatch(*given)
    place.synchronize()
    for source in _lost(active):
        case.topk[source][:] = -1
    received = _Gaps(case, own, result)
    try:
        received.check()
    except AssertionError:
        buffer.dispatch(*given)  # a device that has failed says why at the next call
        raise
    y = place.put(received.new_outputs())
    out, _, _ = buffer.combine(y, topk, weights, active, timeout_us, result[2])
    place.synchronize()
    lost = _lost(active)
    for source in lost:
        full[full // case.num_local == source] = -1
    want = oracle.combine(full, case.weights[own], case.outputs_for(own), case.hidden)
    verify.same(verify.bits(out), want, f"combine {number}, without {lost}")
    return lost


def _lost(active: torch.Tensor) -> set[int]:
    return {rank for rank, one in enumerate(active.tolist()) if not one}


def replaced(rank: Rank, driver: str) -> None:
    """Three ranks; the third is killed, the fourth process takes its place."""
    world = replace(rank, size=3, rank=min(rank.rank, 2))
    with device(driver, rank) as place:
        if rank.rank == 3:
            rank.meet_some("lost", [0, 1, 3])
        buffer = cuda_buffer(world, [_case(world, 0)])
        if rank.rank < 3:
            assert step(place, buffer, world, 0) == set()
            rank.meet_some("whole", [0, 1, 2])
        if rank.rank == 2:
            os.kill(os.getpid(), SIGKILL)
        if rank.rank < 2:
            lost: set[int] = set()
            for number in range(3):
                lost = step(place, buffer, world, number)
                assert lost <= {2}, lost
            assert lost == {2} and buffer.members() == [0, 1]
            rank.meet_some("lost", [0, 1, 3])
            buffer.update_ep_member()
        assert buffer.members() == [0, 1, 2] and buffer.epoch == 2
        for number in range(3):
            assert step(place, buffer, world, number) == set()
        rank.meet_some("end", [0, 1, 3])
        buffer.close()


def late(rank: Rank, driver: str) -> str:
    """Rank 1 does not come: rank 0 goes on at its deadline, and takes it back by an update."""
    text = ""
    with device(driver, rank) as place, cuda_buffer(rank, [_case(rank, 0)]) as buffer:
        assert step(place, buffer, rank, 0) == set()
        rank.meet("whole")
        if rank.rank == 0:
            assert step(place, buffer, rank, 1, SHORT_US) == {1}
            assert buffer.members() == [0]
        rank.meet("late")
        if rank.rank == 1:
            text = _fenced(place, buffer, rank)
        buffer.update_ep_member()
        assert buffer.members() == [0, 1]
        assert step(place, buffer, rank, 2) == set()
        rank.meet("end")
    return text


def _fenced(place: Place, buffer: moewire.Buffer, rank: Rank, number: int = 0) -> str:
    """The error of a rank that was taken out, once its device or its host knows of it.

    Until then it dispatches, from case ``number`` on, and releases nothing: others may combine the
    rows that have reached them.
    """
    kept: list[Any] = []

    def called() -> None:
        for turn in itertools.count(number):
            x, topk = inputs(place, _case(rank, turn), rank.rank)
            kept.append(buffer.dispatch(x, topk, None, 7, 2 * rank.size, MAX_WAIT_US, False))
            place.synchronize()

    return expect(moewire.FencedError, called)


def frozen(rank: Rank, driver: str) -> None:
    """A rank's process is stopped beyond the deadline, learns that it is out, and comes back."""
    with device(driver, rank) as place, cuda_buffer(rank, [_case(rank, 0)]) as buffer:
        assert step(place, buffer, rank, 0) == set()
        place.synchronize()
        rank.meet("whole")
        if rank.rank == 1:
            freeze(rank)
            _fenced(place, buffer, rank)
        else:
            with while_frozen(rank):
                assert step(place, buffer, rank, 1, SHORT_US) == {1}
                assert buffer.members() == [0]
        buffer.update_ep_member()
        assert buffer.members() == [0, 1]
        assert step(place, buffer, rank, 2) == set()
        rank.meet("end")


def ended(rank: Rank, driver: str) -> None:
    """A stopped rank of this host is killed, so that its slots serve again without an update."""
    with device(driver, rank) as place:
        buffer = cuda_buffer(rank, [_case(rank, 0)], on_fence="kill")
        assert step(place, buffer, rank, 0) == set()
        place.synchronize()
        rank.meet("whole")
        if rank.rank == 1:
            freeze(rank)
        with while_frozen(rank):
            assert step(place, buffer, rank, 1, SHORT_US) == {1}
            # This needs a slot that rank 1 may write to: rank 1 is killed before the call gives up.
            assert step(place, buffer, rank, 2, SHORT_US) == {1}
            for number in range(3, 6):
                assert step(place, buffer, rank, number) == {1}
        assert buffer.members() == [0]
        buffer.close()


def cut_off(rank: Rank, driver: str, cut: str, heal: str, stay: Sequence[int]) -> str:
    """As ``jobs.cut_off``: the network ends while exchanges run, some ranks go on, and all meet."""
    away = set(range(rank.size)) - set(stay)
    options = {"unresponsive_after_us": CUT_US}
    with device(driver, rank) as place, cuda_buffer(rank, [_case(rank, 0)], **options) as buffer:
        assert step(place, buffer, rank, 0) == set()
        place.synchronize()
        rank.meet("ready")
        if rank.rank == 0:
            shell(cut)
        text = ""
        if rank.rank in stay:
            _go_on_without(place, buffer, rank, away, stay)
            assert buffer.members() == list(stay)
        else:
            text = _fenced(place, buffer, rank, 2)  # the same case number as the ranks that go on:
            # it may reach them
        rank.meet("decided")
        if rank.rank == 0:
            shell(heal)
        rank.meet("healed")
        buffer.update_ep_member()
        assert buffer.members() == list(range(rank.size)), buffer.members()
        assert step(place, buffer, rank, 1) == set()
        rank.meet("end")
    return text


def _go_on_without(
    place: Place, buffer: moewire.Buffer, rank: Rank, away: set[int], stay: Sequence[int]
) -> None:
    """Each rank makes as many operations: a rank that knows of the loss first waits for the
    others."""
    for number in itertools.count(2):
        lost = step(place, buffer, rank, number)
        assert lost <= away, lost
        with open(os.path.join(rank.folder, f"lost-{number}-{rank.rank}"), "w") as file:
            file.write(str(lost == away))
        rank.meet_some(f"step-{number}", list(stay))
        answers = [Path(rank.folder, f"lost-{number}-{one}").read_text() for one in stay]
        if answers == ["True"] * len(stay):
            return


def _memory(place: Place) -> list[str]:
    """The memory, pinned and on the device, that the driver has allocated and that is not freed."""
    kinds = ("allocation", "range", "handle")
    return [line for line in place.left() if any(kind in line for kind in kinds)]


def closes(rank: Rank, driver: str) -> list[str]:
    """Each rank leaves once it has its sums; one closes first, then the other. Views stay valid.

    Returns the log.
    """
    case, heard = _case(rank, 0), Heard(os.path.join(rank.folder, f"heard-{rank.rank}"))
    logging.getLogger("moewire").addHandler(heard)
    with device(driver, rank) as place:
        before = _memory(place)
        for turn in range(3):
            slow_us = 100 * MAX_WAIT_US  # slow ranks must not be logged here
            buffer = cuda_buffer(rank, [case], name=f"store{turn}", slow_after_us=slow_us)
            received = jobs_cuda.dispatch(place, buffer, case, rank.rank, {})
            jobs_cuda.combine(place, buffer, received, {})
            rows = verify.bits(received.recv_x).copy()
            if turn < 2 and rank.rank == turn:
                rank.meet(f"closed{turn}")
            buffer.close()
            if turn < 2 and rank.rank != turn:
                rank.meet(f"closed{turn}")
            verify.same(verify.bits(received.recv_x), rows, "rows after close")
            del buffer, received
            rank.meet(f"over{turn}")
        assert _memory(place) == before, (_memory(place), before)
    logging.getLogger("moewire").removeHandler(heard)
    return heard.lines


def alone(rank: Rank, driver: str) -> str:
    """Rank 1 never comes: the rendezvous fails, and leaves nothing on the device."""
    with device(driver, rank) as place:
        before = _memory(place)
        text = ""
        if rank.rank == 0:
            text = expect(
                moewire.DeadlineError,
                lambda: cuda_buffer(rank, [_case(rank, 0)], connect_timeout_us=300_000),
            )
        rank.meet("tried")
        assert _memory(place) == before, (_memory(place), before)
    return text
