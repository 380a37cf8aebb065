"""Ranks that work while their telemetry is overwritten, and read it themselves."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import moewire

from . import cases, verify
from .member import Rank


def work(rank: Rank, folder: str, rounds: int) -> int:
    """Right results in every round. Returns how often a thread has read all telemetry."""
    ended, reads, wrong = threading.Event(), [0], []

    def read(buffer: moewire.Buffer) -> None:
        try:
            while not ended.wait(0.005):
                found = buffer.stats()
                assert len(found["num_rows_sent_to"]) == rank.size, found
                if reads[0] % 20 == 0:  # much work for large rings
                    json.dumps(buffer.trace(all_ranks=True), allow_nan=False)
                reads[0] += 1
        except BaseException as error:
            wrong.append(error)

    with rank.buffer() as buffer:
        beside = threading.Thread(target=read, args=(buffer,))
        beside.start()
        Path(folder, f"pid-{rank.rank}").write_text(str(os.getpid()))
        try:
            for number in range(rounds):
                fp8 = number % 2 == 1
                case = cases.Case(rank.size, 2 * rank.size, 2, 128, 8, fp8, "uniform", (number,))
                case = cases.fill(case, [8] * rank.size)
                verify.combine(buffer, verify.dispatch(buffer, case, rank.rank))
        finally:
            ended.set()
            beside.join()
        rank.meet("end")
    if wrong:
        raise wrong[0]
    return reads[0]
