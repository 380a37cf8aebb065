"""Jobs about routings, scatter and gather."""

from __future__ import annotations

import torch

import moewire

from . import routings
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
                made.scatter(own_out=True, bare=True)
                made.gather(1, FLOAT32)
                made.scatter_expanded(8, True)
                made.gather_expanded(8)
                num_rows += len(made.rows)
    return num_rows
