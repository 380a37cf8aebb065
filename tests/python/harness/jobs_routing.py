"""Jobs about routings, scatter and gather."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

import moewire

from . import routings, verify
from .jobs_input import case_for, expect
from .member import Rank
from .routings import BF16, FLOAT32, Made

SMALL = 8 << 20  # bytes: so few that rows of 16 KiB go in rounds


def random_cases(rank: Rank, count: int) -> int:
    """Every form over random cases, with some of them in several rounds; how many rows came."""
    num_rows = 0
    for number in range(count):
        random = rank.random(number)
        small = number % 2 == 0
        with rank.buffer(SMALL if small else 0, name=f"store-{number}") as buffer:
            for _ in range(3):
                case = routings.make(random, rank.size, 60, 8192 if small else 0)
                print(number, case.ids[rank.rank].shape, case.num_experts, case.hidden)
                made = Made(buffer, case, rank.rank, narrow=bool(random.integers(2)))
                made.scatter()
                made.gather()
                made.scatter_expanded(1, False)
                made.gather(2, FLOAT32, FLOAT32)
                made.scatter(own_out=True, rows_alone=True)
                made.gather(1, FLOAT32)
                made.scatter_expanded(8, True)
                made.gather_expanded(8)
                num_rows += len(made.rows)
    return num_rows


def without_ids(rank: Rank) -> None:
    """Routings of which only the ranks are known, beside a dispatch."""
    random = rank.random(77)
    with rank.buffer() as buffer:
        for number in range(4):
            made = Made(buffer, routings.without_ids(random, rank.size), rank.rank)
            made.scatter(rows_alone=True)
            made.gather(1, rows_alone=True)
            case = case_for(rank, number)
            verify.combine(buffer, verify.dispatch(buffer, case, rank.rank))


def held(rank: Rank, count: int) -> None:
    """Many routings at a time, used in any order; more than there are slots."""
    random = rank.random(5)
    with rank.buffer() as buffer:
        made = [Made(buffer, routings.make(random, rank.size, 6), rank.rank) for _ in range(count)]
        for number in random.permutation(2 * count):
            one = made[number // 2]
            if number % 2:
                one.scatter()
            else:
                one.gather()


def small(rank: Rank, buffer: moewire.Buffer) -> Made:
    ids = [torch.arange(2 * rank.size).reshape(2, -1)] * rank.size
    return Made(buffer, routings.Case(ids, 2 * rank.size, 8, 3), rank.rank)


def killed(rank: Rank) -> float:
    """A rank dies in a scatter of several rounds: the others are told which, at once."""
    buffer = rank.buffer()
    made = small(rank, buffer)
    made.scatter()
    rank.meet("whole")
    if rank.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    text = expect(moewire.PeerLostError, made.scatter)
    seconds = time.monotonic() - start
    assert "rank [1] took no part" in text and "scatter" in text, text
    for call in (made.gather, lambda: small(rank, buffer)):  # until an update
        assert "rank [1] took no part" in expect(moewire.PeerLostError, call)
    rank.meet_some("end", [0, 2])
    buffer.close()
    return seconds


def old_epoch(rank: Rank) -> None:
    """A routing ends with its epoch; a new one is as good."""
    with rank.buffer() as buffer:
        made = small(rank, buffer)
        made.scatter()
        buffer.update_ep_member()
        for call in (made.scatter, made.gather):
            text = expect(moewire.StaleHandleError, call)
            assert "epoch 1" in text and "epoch 2" in text, text
        made.check()  # it may still be read
        small(rank, buffer).scatter()
        rank.meet("end")


def interrupted(rank: Rank) -> None:
    """Ctrl-C ends a wait. This rank leaves its epoch, so that the other one does not wait."""
    with rank.buffer() as buffer:
        made = small(rank, buffer)
        if rank.rank == 0:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            expect(KeyboardInterrupt, made.scatter)
            rank.meet("interrupted")
        else:
            rank.meet("interrupted")
            assert "rank [0]" in expect(moewire.PeerLostError, made.scatter)
        buffer.update_ep_member()
        small(rank, buffer).gather()
        rank.meet("end")


def disagreement(rank: Rank, what: str) -> str:
    """Ranks that disagree are told so, and go on."""
    ids, two = torch.zeros((2, 2 + rank.rank), dtype=torch.int64), 2 * rank.size
    with rank.buffer() as buffer:
        made = small(rank, buffer)
        calls: dict[str, Callable[[], Any]] = {
            "K": lambda: buffer.make_routing(ids, two),
            "E": lambda: buffer.make_routing(ids[:, :2].clone(), two * (1 + rank.rank)),
            "row": lambda: buffer.scatter(
                made.routing, torch.zeros((2, 8 * (1 + rank.rank)), dtype=BF16)
            ),
            "weights": lambda: buffer.scatter(
                made.routing,
                torch.zeros((2, 8), dtype=BF16),
                topk_weights=torch.zeros(2, rank.size) if rank.rank else None,
            ),
            "call": lambda: made.scatter() if rank.rank else made.gather(),
        }
        text = expect(moewire.PeerMismatchError, calls[what])
        made.scatter()
        made.gather()
        rank.meet("end")
    return text


def life(rank: Rank) -> None:
    """How a routing ends, and what it is without its buffer."""
    buffer = rank.buffer()
    made = small(rank, buffer)
    assert "pickled" in expect(TypeError, lambda: pickle.dumps(made.routing))
    assert copy.deepcopy(made.routing) is made.routing is copy.copy(made.routing)
    raw, lib = made.routing._raw, buffer.runtime.lib
    other = small(rank, buffer)
    del other.routing
    with rank.buffer(name="second") as second:
        foreign = small(rank, second)
        foreign.buffer = buffer
        assert "another Buffer" in expect(moewire.InvalidArgument, foreign.scatter)
        rank.meet("foreign")
    buffer.close()
    for call in (made.scatter, made.gather, lambda: small(rank, buffer)):
        expect(moewire.ClosedError, call)
    made.check()
    del made.routing
    assert lib.routing_close(raw) == moewire.UnknownHandleError.status
