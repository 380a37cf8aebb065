"""A process sniffs the packets between ranks of two hosts."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from harness.jobs_faults import exchange
from harness.member import Rank

from .hostile import Recorder, listening

# Words that ranks send in clear under "digest": a link offer, and the names of carriers.
WORDS = (b"MWLO", b"\x03tcp")


def overheard(rank: Rank) -> list[bytes]:
    """Two ranks meet and exchange rows; the third process finds these words in their streams."""
    world = replace(rank, size=2)
    if rank.rank < 2:
        rank.meet("listening in")
        buffer = world.buffer()
        exchange(buffer, world)
        ports = "\n".join(str(port) for port in listening(os.getpid()))
        Path(rank.folder, f"ports-{rank.rank}").write_text(ports)
        rank.meet("exchanged")
        rank.meet("heard")
        buffer.close()
        return []
    recorder = Recorder()
    rank.meet("listening in")
    rank.meet("exchanged")
    texts = [Path(rank.folder, f"ports-{r}").read_text() for r in range(2)]
    streams = recorder.stop({int(port) for text in texts for port in text.split()})
    rank.meet("heard")
    assert len(streams) >= 2, "the control connection and one for rows, at least"
    return [word for word in WORDS if any(word in stream for stream in streams)]
