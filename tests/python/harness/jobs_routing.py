"""Jobs about routings, scatter and gather."""

from __future__ import annotations

import copy
import hashlib
import itertools
import os
import pickle
import re
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

import moewire

from . import routings, verify
from .freezing import freeze, while_frozen
from .jobs_input import case_for, expect
from .member import Rank
from .routings import BF16, FLOAT32, Made

SMALL = 8 << 20  # bytes: so few that rows of 16 KiB go in rounds
HANG_US = 2_000_000  # what ranks wait for one that hangs


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
            rank.meet(f"round{number}")  # what is sent dies with its sender until it has come
    return num_rows


def edges(rank: Rank) -> None:
    """No tokens anywhere, tokens on one rank, no selections, all to one rank, experts twice."""
    topk, size = 3, rank.size
    none, nowhere = torch.empty((0, topk), dtype=torch.int64), torch.full((5, topk), -1)
    last = torch.full((5, topk), 2 * size - 1)  # each token three times
    every = torch.arange(5 * topk).reshape(5, topk) % (2 * size)
    with rank.buffer() as buffer:
        for number, ids in enumerate(
            (
                [none] * size,
                [none] * (size - 1) + [every],
                [every] + [none] * (size - 1),
                [nowhere] * size,
                [last] * size,
                [nowhere, *[every] * size][:size],
            )
        ):
            made = Made(buffer, routings.Case(list(ids), 2 * size, 32, number), rank.rank)
            made.scatter()
            made.gather(2)
            made.scatter_expanded(4, True)
            made.gather_expanded(4)
        rank.meet("end")


def digest(rank: Rank, count: int) -> str:
    """A digest of all results of scatters and gathers of random cases."""
    found = hashlib.sha256()
    for number in range(count):
        case = routings.make(rank.random(900 + number), rank.size, 40, 8192)
        with rank.buffer(SMALL, name=f"store-{number}") as buffer:
            made = Made(buffer, case, rank.rank)
            topk = made.routing.num_topk
            weights = case.weights(rank.rank)
            for expanded in (False, True):
                form: dict[str, Any] = {"expanded": expanded, "timeout_us": routings.TIMEOUT_US}
                got = buffer.scatter(made.routing, case.x(rank.rank), topk_weights=weights, **form)
                y = got.rows * (0.37 + 0.61 * rank.rank)
                if not expanded:  # 24 bits each, so that the order of a sum shows
                    y = got.rows.float() / (3 + rank.rank)
                out = torch.empty((made.routing.num_tokens, case.hidden), dtype=y.dtype)
                home = torch.ones(len(y)) if expanded else torch.ones(len(y), topk)
                sums, back = buffer.gather(made.routing, y, topk_weights=home, out=out, **form)
                assert got.weights is not None and back is not None
                for one in (got.rows, got.weights, sums, back):
                    found.update(one.view(torch.uint8).numpy().tobytes())
            rank.meet(f"digest-{number}")
    return found.hexdigest()


def many_steps(rank: Rank, count: int) -> None:
    """Steps of varying T: memory, descriptors and threads do not grow."""
    random, early = rank.random(6), count // 4
    before: tuple[int, int, int] | None = None
    with rank.buffer() as buffer:
        for step in range(count):
            tokens = random.integers(0, 200, rank.size)[rank.rank]
            ids = torch.from_numpy(random.integers(-1, 2 * rank.size, (rank.size, 200, 2)))
            mine = ids[rank.rank, :tokens].contiguous()
            routing = buffer.make_routing(mine, 2 * rank.size, timeout_us=routings.TIMEOUT_US)
            x = torch.full((int(tokens), 64), float(step % 64), dtype=BF16)
            rows = buffer.scatter(routing, x, timeout_us=routings.TIMEOUT_US).rows
            sums, _ = buffer.gather(routing, rows, timeout_us=routings.TIMEOUT_US)
            first, second = (torch.where(mine < 0, -1, mine // 2)).unbind(1)
            times = (first >= 0).int() + ((second >= 0) & (second != first)).int()
            routings.same(sums, x * times[:, None].to(BF16), f"sums of step {step}")
            if step == early:
                before = _held()
        after = _held()
        rank.meet("end")
    assert before is not None
    resident, descriptors, threads = (b - a for a, b in zip(before, after, strict=True))
    assert resident < 16 << 20 and descriptors <= 0 and threads <= 2, (before, after)


def _held() -> tuple[int, int, int]:
    """Resident bytes, descriptors and threads of this process."""
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    return resident, len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


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


def lost(rank: Rank, use: str, how: str) -> float:
    """A rank dies, or hangs, while calls run: the others are told which, in time."""
    buffer = rank.buffer()
    made = small(rank, buffer)
    made.scatter()
    rank.meet("whole")
    if rank.rank == 1:
        end = {"killed": lambda: os.kill(os.getpid(), signal.SIGKILL), "hung": lambda: freeze(rank)}
        threading.Timer(0.05, end[how]).start()
        expect((moewire.FencedError, moewire.PeerLostError), lambda: _for_ever(made, use))
        seconds = 0.0
    else:
        text, seconds = _until_lost(made, use)
        named = re.search(r"rank \[([0-9 ]+)\] took no part", text)
        # The other one may have left because of it.
        assert named and "1" in named[1].split() and use in text, text
        expect(moewire.PeerLostError, made.scatter)  # until an update
        if how == "hung" and rank.rank == 0:
            with while_frozen(rank):
                rank.meet_some("told", [0, 2])
        else:
            rank.meet_some("told", [0, 2])
    if how == "hung":  # all come back, and old routings say that they are of another epoch
        buffer.update_ep_member()
        assert "epoch" in expect(moewire.StaleHandleError, made.scatter)
        small(rank, buffer).gather()
        rank.meet("end")
    buffer.close()
    return seconds


def _call(made: Made, use: str) -> None:
    case, rank, buffer = made.case, made.rank, made.buffer
    if use == "scatter":
        buffer.scatter(made.routing, case.x(rank), timeout_us=HANG_US)
    elif use == "gather":
        rows = torch.zeros((made.routing.num_rows, case.hidden), dtype=BF16)
        buffer.gather(made.routing, rows, timeout_us=HANG_US)
    else:
        buffer.make_routing(case.ids[rank], case.num_experts, timeout_us=HANG_US)


def _for_ever(made: Made, use: str) -> None:
    for _ in itertools.count():
        _call(made, use)


def _until_lost(made: Made, use: str) -> tuple[str, float]:
    """What the call said that ended it, and how long that call took."""
    start = 0.0
    try:
        for _ in itertools.count():
            start = time.monotonic()
            _call(made, use)
    except moewire.PeerLostError as error:
        return str(error), time.monotonic() - start
    raise AssertionError("no rank was lost")


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
    """Ranks that disagree are told so, and go on: after an update, if a device found it."""
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
        if verify.REPORTED_LATER and what != "K":  # which the host finds
            expect(moewire.PeerMismatchError, made.scatter)
            buffer.update_ep_member()
            made = small(rank, buffer)
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
