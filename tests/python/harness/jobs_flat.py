"""Jobs about flat operations."""

from __future__ import annotations

import time

import numpy as np

import moewire

from . import cases, flat, verify
from .cases import Case
from .jobs_oracle import CALLS
from .member import Rank


def size_for(todo: list[Case]) -> int:
    """Room for all cases, flat and packed."""
    extras = [0] * 4
    for kind in flat.EXTRAS:
        for at, (dtype, shape) in enumerate(kind):
            extras[at] = max(extras[at], int(np.prod(shape, initial=1)) * dtype.itemsize)
    hint = moewire.Buffer.get_flat_buffer_size_hint
    packed = moewire.Buffer.get_ep_buffer_size_hint
    return max(
        max(
            hint(
                c.num_max,
                c.hidden,
                c.num_ranks,
                c.num_topk,
                extra_row_bytes=extras,
                fp32_outputs=True,
            ),
            packed(c.num_max, c.hidden, c.num_ranks, c.num_experts, fp32_outputs=True),
        )
        for c in todo
    )


def random_cases(rank: Rank, count: int, copy_outputs: bool = False) -> int:
    """Every way to call, over random cases, some of them packed; the number of flat combines."""
    todo = [cases.make(rank.seed, 5000 + number, rank.size) for number in range(count)]
    checked = 0
    with rank.buffer(size_for(todo), copy_outputs=copy_outputs) as buffer:
        for number, case in enumerate(todo):
            print(case)
            if number % 5 == 4:
                verify.combine(buffer, verify.dispatch(buffer, case, rank.rank))
            else:
                checked += _one_case(rank, buffer, case, number)
    return checked


def _one_case(rank: Rank, buffer: moewire.Buffer, case: Case, number: int) -> int:
    common = rank.random(number)
    own = np.random.default_rng([rank.seed, number, rank.rank, 6])
    if common.random() < 0.3:
        time.sleep(float(own.random()) * 0.003)
    how = CALLS[int(own.integers(len(CALLS)))]
    kind = int(common.integers(len(flat.EXTRAS)))
    received = flat.dispatch(buffer, case, rank.rank, kind, **how)
    if own.random() < 0.5:  # asking for results finishes the receive phase, too
        received.finish()
    received.check()
    times = int(common.integers(1, 4))
    for _ in range(times):
        flat.combine(
            buffer,
            received,
            zero_copy=bool(own.integers(2)),
            own_out=bool(own.integers(2)),
            **CALLS[int(own.integers(len(CALLS)))],
        )
    if common.random() < 0.5:
        handle = received.got.handle
        again = flat.dispatch(buffer, case, rank.rank, kind, handle=handle)
        flat.combine(buffer, again)
        times += 1
    return times
