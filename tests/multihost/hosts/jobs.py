"""Jobs of ranks on several hosts."""

from __future__ import annotations

import hashlib
import itertools
import os
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from signal import SIGKILL, SIGSTOP, pause
from typing import Any

import numpy as np
import torch

import moewire
from harness import cases, verify
from harness.cases import Case
from harness.jobs_faults import exchange, go_on
from harness.jobs_input import case_for, expect
from harness.jobs_oracle import size_for
from harness.member import Rank


def carriers(rank: Rank, transport: str = "auto") -> dict[int, str]:
    """The carriers by rank, after an exchange."""
    with rank.buffer(transport=transport) as buffer:
        exchange(buffer, rank)
        found = {path["rank"]: path["carrier"] for path in buffer.paths()}
        rank.meet("end")
    return found


def digest(rank: Rank, count: int) -> str:
    """A digest of all results of deterministic dispatches and combines, without padding."""
    found = hashlib.sha256()
    todo = [cases.make(rank.seed, 300 + number, rank.size) for number in range(count)]
    with rank.buffer(size_for(todo), deterministic=True) as buffer:
        for case in todo:
            received = verify.dispatch(buffer, case, rank.rank)
            _add_received(found, received)
            found.update(verify.combine(buffer, received).tobytes())
    return found.hexdigest()


def _add_received(found: Any, received: verify.Received) -> None:
    src_info, layout = received.handle[0], received.handle[1]
    found.update(received.recv_count.numpy().tobytes() + layout.numpy().tobytes())
    tensors = received.recv_x if received.case.fp8 else (received.recv_x,)
    for expert, count in enumerate(received.recv_count.tolist()):
        for tensor in (*tensors, src_info):
            found.update(np.ascontiguousarray(verify.bits(tensor[expert, :count])).tobytes())


def no_tokens(rank: Rank) -> None:
    """No rank has tokens; then only one rank has."""
    for number, tokens in enumerate(([0] * rank.size, [0] * (rank.size - 1) + [3])):
        case = Case(rank.size, rank.size, 1, 128, 4, False, "uniform", (rank.seed, number))
        cases.fill(case, tokens)
        with rank.buffer(name=f"store{number}") as buffer:
            verify.combine(buffer, verify.dispatch(buffer, case, rank.rank))
            rank.meet(f"end{number}")


def cannot_construct(rank: Rank, options: Sequence[dict[str, Any]]) -> str:
    """The error text of a construction that must fail on this rank; empty if it did not fail.

    Ranks that must meet, or learn from others, need their own ``connect_timeout_us``.
    """
    own = dict(options[rank.rank])
    if own.pop("no_route", False):
        moewire._config.reach.own_address = lambda: ""
    try:
        rank.buffer(**{"connect_timeout_us": 3_000_000, **own}).close()
    except moewire.MoewireError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def step(
    buffer: moewire.Buffer, rank: Rank, number: int, timeout_us: int = -1, pre_reduce: bool = False
) -> set[int]:
    """A dispatch and a combine, during which ranks may be lost; returns the lost ranks.

    The results have the data of the ranks in the mask after each call, and nothing else.
    """
    case, mask = case_for(rank, number), torch.ones(rank.size, dtype=torch.int32)
    case.pre_reduce = (pre_reduce,) * rank.size
    full = case.topk[rank.rank].copy()
    x, topk = verify.bf16(case.x[rank.rank]), torch.from_numpy(full)
    weights = torch.from_numpy(case.weights[rank.rank])
    result = buffer.dispatch(
        x,
        topk,
        mask,
        case.num_max,
        case.num_experts,
        timeout_us,
        False,
        topk_weights=weights if pre_reduce else None,
        pre_reduce=pre_reduce,
    )
    for source in _lost(mask):
        case.topk[source][:] = -1
    received = verify.Received(case, rank.rank, result, gaps=True)
    received.check()
    out, _, _ = buffer.combine(received.new_outputs(), topk, weights, mask, timeout_us, result[2])
    left = full.copy()
    for source in _lost(mask):
        left[left // case.num_local == source] = -1
    want = case.combined(rank.rank, left, case.weights[rank.rank])
    verify.same(verify.bits(out), want, f"combine {number}, without {_lost(mask)}")
    return _lost(mask)


def killed_pre_reduced(rank: Rank) -> int:
    """A rank dies in the middle of pre-reduced exchanges: its sums are missing as a whole."""
    # As many for all: a rank that sees the loss an operation earlier must not leave earlier.
    num_exchanges, last_of_1 = 12, 8
    lost: set[int] = set()
    with rank.buffer() as buffer:
        for number in range(num_exchanges):
            if rank.rank == 1 and number == 4:
                timer = threading.Timer(0.0005 * (rank.seed % 8), os.kill, (os.getpid(), SIGKILL))
                timer.start()
            if rank.rank == 1 and number == last_of_1:
                pause()  # the rank is late, but it comes
            lost = step(buffer, rank, number, pre_reduce=True)
            assert lost <= {1}, lost
    assert lost == {1}, lost
    return num_exchanges


def _lost(mask: torch.Tensor) -> set[int]:
    return {rank for rank, active in enumerate(mask.tolist()) if not active}


def cut_off(rank: Rank, cut: str, heal: str, stay: Sequence[int]) -> str:
    """The network between the hosts ends for good while exchanges run, and later heals.

    The ranks in ``stay`` go on without the others, which are fenced; an update brings all together
    again. ``cut`` and ``heal`` are commands of rank 0's host.
    """
    away = set(range(rank.size)) - set(stay)
    with rank.buffer() as buffer:
        exchange(buffer, rank)
        rank.meet("ready")
        timer = threading.Timer(0.05, shell, (cut,))
        if rank.rank == 0:
            timer.start()
        text = ""
        if rank.rank in stay:
            _go_on_until(buffer, rank, away, stay)
            assert buffer.members() == list(stay)
        else:
            text = expect(moewire.FencedError, lambda: _go_on_until(buffer, rank, set()))
            assert rank.rank not in buffer.members()
        rank.meet("decided")
        timer.join() if rank.rank == 0 else None
        if rank.rank == 0:
            shell(heal)
        rank.meet("healed")
        buffer.update_ep_member()
        assert buffer.members() == list(range(rank.size)), buffer.members()
        exchange(buffer, rank)
        rank.meet("end")
    return text


def half_is_lost(rank: Rank) -> str:
    """Rank 0's host, with half of the ranks, becomes unresponsive for good while exchanges run.

    Rank 1 cannot know whether it was cut off itself: it is fenced, and names the missing ranks. An
    operator that knows that the other host is gone says so, by an update with the remaining ranks.
    """
    buffer = rank.buffer()
    exchange(buffer, rank)
    path = Path(rank.folder, "pid")
    if rank.rank == 0:
        path.write_text(str(os.getpid()))
    rank.meet("pid")
    if rank.rank == 0:
        os.kill(os.getpid(), SIGSTOP)  # the rank sends nothing and closes nothing
    try:
        text = expect(moewire.FencedError, lambda: _go_on_until(buffer, rank, set()))
    finally:
        os.kill(int(path.read_text()), SIGKILL)
    buffer.update_ep_member(members=[1])
    assert buffer.members() == [1]
    go_on(buffer, rank, -1, {0})
    buffer.close()
    return text


def _go_on_until(
    buffer: moewire.Buffer, rank: Rank, away: set[int], stay: Sequence[int] = ()
) -> None:
    """Exchanges until the ranks in ``away``, and no others, are lost; then makes three more.

    The results of one rank may still have all of a lost rank's data where those of another rank
    have none. So the ranks in ``stay`` say when each saw all of them lost, and go on after the last
    of these points.
    """
    for number in itertools.count():
        lost = step(buffer, rank, number)
        assert lost <= away or not away, (lost, away)
        mine = Path(rank.folder, f"seen-{rank.rank}")
        if away and lost == away and not mine.exists():
            mine.with_suffix(".new").write_text(str(number))
            mine.with_suffix(".new").rename(mine)
        paths = [Path(rank.folder, f"seen-{other}") for other in stay]
        seen = [int(path.read_text()) for path in paths if path.exists()]
        # A rank that has ended the third exchange after the last point knows that all have said so.
        if seen and len(seen) == len(stay) and number >= 3 + max(seen):
            return


def shell(words: str) -> None:
    subprocess.run(words, shell=True, check=True)


def endures(rank: Rank, command: str, count: int) -> None:
    """The network is disturbed while exchanges run; no rank is lost."""
    with rank.buffer() as buffer:
        exchange(buffer, rank)
        if rank.rank == 0:
            shell(command)
        for number in range(count):
            assert step(buffer, rank, number) == set(), number
        rank.meet("end")


def closes_at_once(rank: Rank) -> None:
    """Each rank leaves as soon as it has the outputs of its last combine."""
    case = Case(rank.size, rank.size, 2, 1024, 128, False, "uniform", (rank.seed, 41))
    cases.fill(case, [128] * rank.size)
    for number in range(3):
        with rank.buffer(size_for([case]), name=f"store{number}") as buffer:
            verify.combine(buffer, verify.dispatch(buffer, case, rank.rank))
        rank.meet(f"end{number}")


def write_keys(path: str, lines: Sequence[str]) -> None:
    """Writes the file as an operator does: a reader sees the old file or the new one."""
    with open(os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write("\n".join(lines))
    os.rename(path + ".new", path)


def exchange_keys(rank: Rank, old: str, new: str) -> None:
    """Replaces one key by another while ranks run. A file that others can read is refused."""
    path = os.path.join(rank.folder, f"keys-{rank.rank}")
    write_keys(path, [old])
    with rank.buffer(key_file=path) as buffer:
        exchange(buffer, rank)
        first = rank.rank == 0  # the operator has reached only this host
        for number, lines in enumerate(
            ([old, new], [new, old] if first else [old, new], [new, old], [new])
        ):
            write_keys(path, lines)
            rank.meet(f"written{number}")
            buffer.update_ep_member()
            exchange(buffer, rank, number)
            rank.meet(f"exchanged{number}")
        os.chmod(path, 0o644)
        text = expect(moewire.InvalidArgument, buffer.update_ep_member)
        assert "key_file" in text and "read by others" in text, text
        rank.meet("refused")
        exchange(buffer, rank)  # nothing has changed
        rank.meet("still here")
        write_keys(path, [new])
        buffer.update_ep_member()
        exchange(buffer, rank)
        rank.meet("end")
