"""Jobs about statistics and traces."""

from __future__ import annotations

import json
import logging
import os
import time
from typing import Any

import numpy as np
import torch

import moewire
from moewire import trace
from moewire._native import event_log

from . import cases, verify
from .cases import Case
from .jobs_input import expect
from .member import Rank


def distinct(topk: np.ndarray, expert: int) -> int:
    """Tokens that chose an expert, each once."""
    return int((topk == expert).any(axis=1).sum())


def expected(rounds: list[Case], rank: int) -> dict[str, Any]:
    """What the statistics must say, from the routing alone."""
    first = rounds[0]
    owners = [range(r * first.num_local, (r + 1) * first.num_local) for r in range(first.num_ranks)]

    def rows(source: int, owner: int) -> int:
        return sum(distinct(case.topk[source], e) for case in rounds for e in owners[owner])

    ranks = range(first.num_ranks)
    row_bytes = first.hidden + first.hidden // 128 * 4 if first.fp8 else 2 * first.hidden
    selected = sum(int((case.topk[rank] >= 0).sum()) for case in rounds)
    return {
        "num_rows_sent_to": [rows(rank, owner) for owner in ranks],
        "num_rows_received_from": [rows(source, rank) for source in ranks],
        "expert_rows": [
            sum(distinct(case.topk[source], e) for case in rounds for source in ranks)
            for e in owners[rank]
        ],
        "bytes": sum(rows(rank, owner) for owner in ranks) * (row_bytes + 4),
        "selected": selected,
        "tokens": sum(len(case.x[rank]) for case in rounds),
        "hidden": first.hidden,
    }


def stats(rank: Rank) -> None:
    """Rows, bytes and load are what numpy counts in the routing."""
    for fp8 in (False, True):
        rounds = []
        for number, routing in enumerate(cases.ROUTINGS):
            case = Case(rank.size, 4 * rank.size, 3, 256, 16, fp8, routing, (rank.seed, number))
            rounds.append(cases.fill(case, [16 - source for source in range(rank.size)]))
        with rank.buffer(name=f"store-{fp8}") as buffer:
            for case in rounds:
                verify.combine(buffer, verify.dispatch(buffer, case, rank.rank))
            compare(buffer.stats(), expected(rounds, rank.rank), rank.size, len(rounds))
            rank.meet(f"end-{fp8}")


def compare(
    found: dict[str, Any], want: dict[str, Any], ranks: int, rounds: int, prefaults: bool = True
) -> None:
    """The statistics against what was counted in the routing."""
    for key in ("num_rows_sent_to", "num_rows_received_from", "expert_rows"):
        assert found[key] == want[key], (key, found[key], want[key])
    dispatch, combine = found["dispatch"], found["combine"]
    assert dispatch["count"] == combine["count"] == rounds
    assert dispatch["num_rows"] == sum(want["num_rows_sent_to"])
    assert dispatch["num_rows_received"] == sum(want["expert_rows"])
    assert dispatch["num_tokens"] == combine["num_tokens"] == want["tokens"]
    assert dispatch["num_bytes"] == want["bytes"]
    assert combine["num_rows"] == want["selected"]
    copied = sum(want["expert_rows"]) * 2 * want["hidden"]  # verify.combine is not zero-copy
    assert combine["num_bytes"] - want["selected"] * 2 * want["hidden"] in (0, copied)
    load = want["expert_rows"]
    assert abs(found["expert_imbalance"] - max(load) * len(load) / sum(load)) < 1e-9
    for kind in (dispatch, combine):
        assert sum(kind["time_histogram"]) == sum(kind["wait_histogram"]) == rounds
        assert len(kind["wait_ns_for"]) == len(kind["last_count"]) == ranks
        assert sum(kind["last_count"]) <= rounds
        assert kind["wait_ns"] <= kind["time_ns"] and kind["max_ns"] <= kind["time_ns"]
    remote = found["remote"]
    assert (remote["links"], remote["refused"]) == ([], {})
    assert remote["num_ballots"] == remote["num_ended"] == 0
    assert found["memory"]["slab_bytes"] > 0
    assert (found["memory"]["prefaulted_bytes"] > 0) == prefaults


LATE = 0.05


def traces(rank: Rank) -> dict[str, Any]:
    """Rank 1 is late; overlapping operations; returns what rank 0 saw of all."""
    with rank.buffer() as buffer:
        case = cases.fill(
            Case(rank.size, 2 * rank.size, 2, 128, 8, False, "uniform", (rank.seed,)),
            [8] * rank.size,
        )
        for _ in range(3):
            if rank.rank == 1:
                time.sleep(LATE)
            verify.combine(buffer, verify.dispatch(buffer, case, rank.rank))
        one = verify.dispatch(buffer, case, rank.rank, return_recv_hook=True)
        two = verify.dispatch(buffer, case, rank.rank, return_recv_hook=True)
        one.finish()
        one.check()
        two.finish()
        two.check()
        verify.combine(buffer, one)
        verify.combine(buffer, two)
        rank.meet("worked")
        own = os.path.join(rank.folder, f"trace-{rank.rank}.json")
        buffer.trace(own)
        rank.meet("written")
        everything = buffer.trace(all_ranks=True)
        check_trace(everything, rank.size)
        paths = [os.path.join(rank.folder, f"trace-{r}.json") for r in range(rank.size)]
        with open(own) as file:
            assert {event["pid"] for event in json.load(file)["traceEvents"]} == {rank.rank}
        merged = trace.merge([*paths, own])
        assert merged == everything, "of files, of which one comes twice"
        short = buffer.trace(last=2)
        operations = {_operation(event) for event in _slices(short)}
        assert len(operations) == 2
        expect(Exception, lambda: buffer.trace(last=0))
        rank.meet("end")
    return everything


def _slices(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in document["traceEvents"] if event["ph"] == "X"]


def _operation(event: dict[str, Any]) -> tuple[Any, ...]:
    return (event["pid"], event["cat"], event["args"]["operation"], event["args"]["combine"])


def check_trace(document: dict[str, Any], num_ranks: int) -> None:
    """A Chrome trace of all ranks; slices in one lane follow one another."""
    document = json.loads(json.dumps(document))
    lanes: dict[tuple[int, int], int] = {}
    for event in document["traceEvents"]:
        assert event["ph"] in ("M", "X") and isinstance(event["name"], str), event
        if event["ph"] == "M":
            continue
        begin, end = round(event["ts"] * 1e3), round((event["ts"] + event["dur"]) * 1e3)
        assert end > begin > 0, event
        lane = (event["pid"], event["tid"])
        assert begin >= lanes.get(lane, 0) - 1, f"overlaps the slice before: {event}"
        lanes[lane] = end
    assert {pid for pid, _ in lanes} == set(range(num_ranks))
    named = {e["pid"] for e in document["traceEvents"] if e["name"] == "process_name"}
    assert named == set(range(num_ranks))


def no_record(rank: Rank) -> None:
    """MOEWIRE_RECORD=0 turns it off."""
    os.environ["MOEWIRE_RECORD"] = "0"
    with rank.buffer() as buffer:
        case = cases.fill(Case(rank.size, 4, 2, 128, 8, False, "uniform", (1,)), [8] * rank.size)
        verify.combine(buffer, verify.dispatch(buffer, case, rank.rank))
        found = buffer.stats()
        assert found["recording"] is False and found["dispatch"]["count"] == 0
        assert _slices(buffer.trace()) == []
        rank.meet("end")


def loop(rank: Rank, folder: str, unresponsive_after_us: int = 0) -> None:
    """Dispatches and combines until a file appears; after an error it says so and stays."""
    log = os.path.join(folder, f"log-{rank.rank}")
    handler = logging.FileHandler(log)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))
    logging.getLogger("moewire").addHandler(handler)
    with open(os.path.join(folder, f"pid-{rank.rank}"), "w") as file:
        file.write(str(os.getpid()))
    buffer = rank.buffer(unresponsive_after_us=unresponsive_after_us)
    try:
        while not os.path.exists(os.path.join(folder, "stop")):
            _step(buffer, 2 * rank.size)
            time.sleep(0.005)
    except moewire.MoewireError as error:
        handler.acquire()
        with open(log, "a") as file:
            file.write(f"ended: {type(error).__name__}\n")
        handler.release()
        while not os.path.exists(os.path.join(folder, "stop")):
            time.sleep(0.02)
    finally:
        logging.getLogger("moewire").removeHandler(handler)
        handler.close()
        buffer.close()


class Heard(logging.Handler):
    """Collects the lines of the logger "moewire", and makes a file for the first of them."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        open(self._path, "w").close()


def slow_reader(rank: Rank) -> list[str]:
    """Rank 1 reads late; rank 0 waits for its combine buffer. Returns what was logged."""
    heard = os.path.join(rank.folder, "heard")
    handler = Heard(heard)
    with rank.buffer(slow_after_us=20_000) as buffer:
        x, idx = torch.ones((4, 128), dtype=torch.bfloat16), torch.zeros((4, 1), dtype=torch.int64)
        recv_x, _, handle, _, _ = buffer.dispatch(x, idx, None, 4, 2, -1, use_fp8=False)
        if rank.rank == 1:
            deadline = time.monotonic() + 30
            while not os.path.exists(heard) and time.monotonic() < deadline:
                time.sleep(0.005)
        weights = torch.ones((4, 1))
        buffer.combine(recv_x, idx, weights, None, -1, handle)
        if rank.rank == 0:
            buffer.runtime.events.look()  # what a busy machine has caused until here
            buffer.runtime.events._limiter = event_log.Limiter()
            logging.getLogger("moewire").addHandler(handler)
            try:
                buffer.get_next_combine_buffer(handle)
            finally:
                logging.getLogger("moewire").removeHandler(handler)
        rank.meet("end")
    return handler.lines


def _step(buffer: moewire.Buffer, experts: int) -> None:
    """Every rank sends to every rank."""
    x = torch.ones((8, 256), dtype=torch.bfloat16)
    idx = torch.arange(16).view(8, 2) % experts
    recv_x, _, handle, _, _ = buffer.dispatch(x, idx, None, 8, experts, -1, use_fp8=False)
    y = buffer.get_next_combine_buffer(handle)
    y.copy_(recv_x)
    buffer.combine(y, idx, torch.ones(idx.shape), None, -1, handle, zero_copy=True)
