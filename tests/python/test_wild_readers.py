"""Readers beside ranks, while random words of the ranks' telemetry are overwritten.

`moewire top`, `moewire trace take` and `stats()` cost no rank anything, and end well, whatever
the words hold. `core/ep/cpu` (`TestWildWords`) has the words by which ranks work.
"""

from __future__ import annotations

import json
import os
import random
import struct
import threading
import time
from pathlib import Path

import pytest

from conftest import SEED
from harness import jobs_beside_readers
from harness.outside import Environment
from harness.team import Team
from moewire import top, trace
from moewire._observe import area, live

RANKS = 3
VALUES = (0, 1, 48, 49, (1 << 31) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)


def memory_of(pid: int, rank: int) -> int:
    """The memory of a rank, for reading and writing, as other processes of the user can get it."""
    for path, link in live._links(pid):
        if f"moewire-rank-{rank} " in link + " ":
            return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    raise AssertionError(f"process {pid} has no memory of rank {rank}")


def word(begin: int, number: random.Random) -> int:
    """Where a word of the telemetry is: of the header, the totals, or the records."""
    first, size = number.choice([(0, 32), (32, 992), (9216, 1024 * 16), (25600, 48 * 16)])
    return begin + 8 * (first + number.randrange(size))


def overwrite(file: int, begin: int, number: random.Random) -> tuple[int, bytes]:
    """Returns where, and what was there."""
    at = word(begin, number)
    old = os.pread(file, 8, at)
    flipped = struct.unpack("<Q", old)[0] ^ 1 << number.randrange(64)
    new = number.choice([flipped, *VALUES, number.getrandbits(64)])
    os.pwrite(file, struct.pack("<Q", new), at)
    return at, old


@pytest.mark.parametrize("rounds", [60, pytest.param(300, marks=pytest.mark.all)])
def test_words_are_overwritten_under_readers(
    rounds: int, team: Team, tmp_path: Path, environment: Environment
) -> None:
    reads: list[int] = []
    arguments = (RANKS, jobs_beside_readers.work, str(tmp_path), rounds)
    running = threading.Thread(target=lambda: reads.extend(team.run(*arguments)))
    running.start()
    number, files = random.Random(SEED), []
    while running.is_alive() and len(files) < RANKS:
        path = tmp_path / f"pid-{len(files)}"
        if path.exists() and path.read_text():
            files.append(memory_of(int(path.read_text()), len(files)))
        time.sleep(0.01)
    begins = [area.find_area(os.pread(file, area.HEAD_BYTES, 0)) for file in files]
    seen = refused = words = 0
    while running.is_alive():
        back = []
        for file, begin in zip(files, begins, strict=True):
            assert begin is not None
            back += [(file, *overwrite(file, begin, number)) for _ in range(number.randrange(20))]
        words += len(back)
        found, samples = top.look()
        for group in found.groups:
            json.dumps(top.describe_group(group, samples, samples), allow_nan=False)
            with_records = live.find(group.id)
            ranks = [r for one in with_records.groups if one.id == group.id for r in one.ranks]
            json.dumps(trace._trace_of(ranks), allow_nan=False)
        for file, at, old in reversed(back):
            os.pwrite(file, old, at)  # else a word of the header would hide all others
        seen, refused = seen + len(samples), refused + len(found.refused)
    running.join()
    for file in files:
        os.close(file)
    print(f"{words} words, ranks seen {seen} times, refused {refused} times, read {reads} times")
    assert len(reads) == RANKS and min(reads) > 0, "a rank has failed, or has read nothing"
    assert words > 0 and seen + refused > 0
