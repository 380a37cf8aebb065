"""Jobs about what ranks know of ranks of other hosts."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from ctypes import byref, c_uint32, sizeof
from pathlib import Path
from typing import Any

import numpy as np

import moewire
from harness import cases, verify
from harness.cases import Case
from harness.jobs_faults import exchange
from harness.member import Rank
from moewire import _abi as abi

# By remote rank: messages and bytes sent, messages and bytes received.
Counts = dict[str, list[int]]
# On a busy machine, no rank is taken for lost.
MAX_WAIT_US = 5_000_000


def links(buffer: moewire.Buffer) -> dict[int, dict[str, Any]]:
    return {link["rank"]: link for link in buffer.stats()["remote"]["links"]}


def _counts(buffer: moewire.Buffer) -> Counts:
    names = [f"num_{what}_{way}" for way in ("sent", "received") for what in ("messages", "bytes")]
    return {str(r): [link[name] for name in names] for r, link in links(buffer).items()}


def _tell(path: str, value: Any) -> None:
    """Writes the file so that a reader finds all of it."""
    Path(f"{path}.new").write_text(json.dumps(value))
    os.replace(f"{path}.new", path)


def agree(rank: Rank, buffer: moewire.Buffer, name: str) -> Counts:
    """Waits until the others have received as much as each rank has sent, by their counts."""
    files = [os.path.join(rank.folder, f"{name}-{r}") for r in range(rank.size)]
    done = [f"{file}-agrees" for file in files]
    deadline = time.monotonic() + 30
    own = _counts(buffer)
    while not all(map(os.path.exists, done)):
        own = _counts(buffer)
        _tell(files[rank.rank], own)
        if _fits(rank.rank, own, files):
            Path(done[rank.rank]).touch()
        assert time.monotonic() < deadline, (name, own, [Path(f).read_text() for f in files])
        time.sleep(0.01)
    return own


def _fits(rank: int, own: Counts, files: list[str]) -> bool:
    for other, counts in own.items():
        if not os.path.exists(files[int(other)]):
            return False
        theirs = json.loads(Path(files[int(other)]).read_text())[str(rank)]
        if counts != theirs[2:] + theirs[:2]:
            return False
    return True


def counted(rank: Rank, rounds: int) -> dict[str, Any]:
    """Dispatches; then updates and exchanges. Returns the counts, and the rows by owner."""
    todo = []
    for number in range(rounds):
        case = Case(rank.size, 4 * rank.size, 3, 1024, 64, False, "skewed", (rank.seed, number))
        todo.append(cases.fill(case, [64 - 3 * source for source in range(rank.size)]))
    with rank.buffer(unresponsive_after_us=MAX_WAIT_US) as buffer:
        start = agree(rank, buffer, "start")
        for case in todo:
            verify.dispatch(buffer, case, rank.rank).handle.release()
        after = agree(rank, buffer, "dispatched")
        buffer.update_ep_member()
        updated = _counts(buffer)
        exchange(buffer, rank)
        last = agree(rank, buffer, "updated")
        _same_through_c(buffer)
        states = {link["state"] for link in links(buffer).values()}
        rank.meet("end")
    rows = {
        str(owner): sum(_crossing(case, rank.rank, owner) for case in todo)
        for owner in range(rank.size)
    }
    found = {"start": start, "after": after, "updated": updated, "last": last}
    return {**found, "rows": rows, "states": states, "row_bytes": 2 * 1024}


def _crossing(case: Case, source: int, owner: int) -> int:
    """The tokens with an expert on that host, each counted once."""
    return int((case.topk[source] // case.num_local == owner).any(axis=1).sum())


def _same_through_c(buffer: moewire.Buffer) -> None:
    """``mw_buffer_links`` agrees with ``stats``, for callers with structs of any size."""
    runtime, count = buffer.runtime, c_uint32()
    found = (abi.mw_link_t * abi.MW_MAX_RANKS)()
    found[0].size = sizeof(abi.mw_link_t)
    want = links(buffer)
    runtime.check(runtime.lib.buffer_links(runtime.id, found, len(found), byref(count)))
    assert [link.rank for link in found[: count.value]] == sorted(want)
    for link in found[: count.value]:
        assert (link.carrier, link.state) == (abi.MW_LINK_TCP, abi.MW_LINK_UP)
        assert link.size == sizeof(abi.mw_link_t) and 0 < link.num_credits <= link.num_max_credits
        for name in ("num_messages_sent", "num_bytes_sent", "num_bytes_received", "num_blocked"):
            assert getattr(link, name) == want[link.rank][name], (name, want)
        assert link.heard_ns >= want[link.rank]["heard_ns"] > 0
        assert link.num_beats >= want[link.rank]["num_beats"] > 0
    runtime.check(runtime.lib.buffer_links(runtime.id, found, 1, byref(count)))
    assert count.value == 1
    for words in (2, 3, 40):  # of 64 bits
        some = np.full((len(want) + 1, words), -1, np.int64)
        some.view(np.int32)[0, 0] = 8 * words
        address = some.ctypes.data
        pointer = abi.POINTER(abi.mw_link_t).from_address(_address_of(address))
        runtime.check(runtime.lib.buffer_links(runtime.id, pointer, len(want), byref(count)))
        assert some.view(np.int32)[: len(want), :2].tolist() == [[8 * words, r] for r in want]
        known = sizeof(abi.mw_link_t) // 8
        assert not some[: len(want), known:].any() and (some[len(want)] == -1).all()


def _address_of(address: int) -> int:
    """The place in memory of that address itself."""
    _kept.append(np.array([address], np.uint64))
    return int(_kept[-1].ctypes.data)


_kept: list[np.ndarray] = []


def on_the_wire(rank: Rank, device: str) -> dict[str, int]:
    """The counts of this rank's links and of its host's interface, for the same time."""

    def sent() -> int:
        lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
        (line,) = (line for line in lines if line.split(":")[0].strip() == device)
        return int(line.split(":")[1].split()[8])

    todo = []
    for number in range(10):
        case = Case(rank.size, 2 * rank.size, 2, 1024, 64, False, "uniform", (rank.seed, number))
        todo.append(cases.fill(case, [64] * rank.size))
    with rank.buffer(unresponsive_after_us=MAX_WAIT_US) as buffer:
        agree(rank, buffer, "start")
        rank.meet("started")
        before, counts = sent(), _counts(buffer)
        rank.meet("counted")
        for case in todo:
            verify.combine(buffer, verify.dispatch(buffer, case, rank.rank))
        after = agree(rank, buffer, "end")
        rank.meet("ended")
        interface = sent() - before
        rank.meet("measured")
    return {
        "interface": interface,
        "rows": sum(_crossing(case, rank.rank, int(to)) for case in todo for to in after) * 2048,
        "links": sum(after[r][1] - counts[r][1] for r in after),
        "messages": sum(after[r][0] - counts[r][0] for r in after),
    }


def unauthenticated(rank: Rank) -> dict[str, int]:
    """Sends noise to this rank's own listeners; returns the refusals by then."""
    with rank.buffer(unresponsive_after_us=MAX_WAIT_US) as buffer:
        exchange(buffer, rank)
        assert buffer.stats()["remote"]["refused"] == {}, buffer.stats()["remote"]
        other = 1 - rank.rank
        address, _, port = buffer.paths()[other]["device"].rpartition(":")
        with socket.create_connection((address.strip("[]"), int(port)), 30) as one:
            one.sendall(bytes(200))
            one.settimeout(30)
            with contextlib.suppress(ConnectionResetError):
                assert one.recv(1) == b"", "the other side ends it"
        deadline = time.monotonic() + 30
        while not (refused := buffer.stats()["remote"]["refused"]):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        exchange(buffer, rank)
        rank.meet("end")
    return dict(refused)


def lost(rank: Rank) -> dict[str, Any]:
    """The last rank ends in the middle; returns what the first rank knows of it then."""
    buffer = rank.buffer()
    exchange(buffer, rank)
    rank.meet("ready")
    if rank.rank == rank.size - 1:
        os._exit(9)
    deadline = time.monotonic() + 30
    while links(buffer)[rank.size - 1]["state"] not in ("ended", "out"):
        assert time.monotonic() < deadline, links(buffer)
        time.sleep(0.01)
    found = buffer.stats()["remote"]
    rank.meet_some("seen", list(range(rank.size - 1)))
    buffer.close()
    return found


def traced(rank: Rank, path: str) -> None:
    """A trace of exchanges; at its end a heartbeat has told how far the other clock is."""
    with rank.buffer(unresponsive_after_us=MAX_WAIT_US) as buffer:
        deadline = time.monotonic() + 30
        while any(link["num_beats"] < 10 for link in links(buffer).values()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for number in range(5):
            exchange(buffer, rank, number)
        buffer.trace(path)
        rank.meet("end")
