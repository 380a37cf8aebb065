"""One rank of a case: check once, then measure everything in turns."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from .._config.tuning import Tuning
from ..buffer import Buffer
from ..errors import MoewireError
from . import floor, warm, workload
from .calls import Calls
from .calls import load as load_calls
from .cases import Case
from .compiler import CompileError
from .numpy_floor import NumpyFloor
from .ours import Moewire
from .peers import Peer, first_reason, open_peers
from .slab import Memory
from .start import Start, spin_seconds

# When each step began and ended, in seconds of the clock that all processes share.
Samples = dict[str, list[tuple[float, float]]]


class Settings(NamedTuple):
    """What is the same for every case."""

    repeat: int
    warmup: int
    peers: dict[str, str]  # the module that opens each, by name
    vector_width: int
    floor: str
    seed: int
    tuning: Tuning  # of Moewire's buffers
    warm: bool  # pairs without rest, too


class Step(NamedTuple):
    """Something that every rank does at a time; without a name it is not a sample."""

    name: str
    run: Callable[[float], tuple[float, float]]


class Place(NamedTuple):
    """Where a rank finds the others."""

    rank: int
    folder: str
    shared: str  # the file of the floor's memory; empty: there is none


def run(case: Case, settings: Settings, place: Place) -> dict[str, Any]:
    """Everything that one rank measures: times per step and repetition, and counters."""
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // case.ranks))
    with gloo(case, place) as group:
        file = os.open(place.shared, os.O_RDWR)
        try:
            return _run(case, settings, place, group, file)
        finally:
            os.close(file)


@contextlib.contextmanager
def gloo(case: Case, place: Place) -> Iterator[dist.ProcessGroup]:
    """The ranks of a case as the default process group, as long as the body runs."""
    store = dist.FileStore(os.path.join(place.folder, "store"), case.ranks)
    dist.init_process_group("gloo", store=store, rank=place.rank, world_size=case.ranks)
    group = dist.group.WORLD
    assert group is not None
    try:
        yield group
    finally:
        dist.destroy_process_group()


def _run(
    case: Case, settings: Settings, place: Place, group: dist.ProcessGroup, file: int
) -> dict[str, Any]:
    work = workload.make(case, settings.seed, place.rank)
    library, reason = _library(settings.floor)
    spin = spin_seconds(case.ranks)
    ground = _ground(work, file, library, spin)
    peers, failures = open_peers(settings.peers, work, group, place.folder)
    try:
        with _buffer(case, settings, group) as buffer:
            ours, calls = Moewire(work, buffer), _calls(work, buffer, spin)
            failures |= _verify(work, ours, calls, peers, group)
            measured = [peer for peer in peers if peer.name not in failures]
            start = Start(group, library)
            samples = _measure(settings, start, _steps(start, ours, calls, ground, measured))
            rounds = {}
            if settings.warm or case.without_rest:
                rounds = warm.measure(start, ground, calls, ours, measured, settings.repeat)
            counters = buffer.counters()
        dist.barrier(group)
    finally:
        for peer in peers:
            peer.close()
    return {
        "samples": samples,
        "warm": rounds,
        "counters": counters,
        "peers": {peer.name: peer.version for peer in measured},
        "peer_failures": failures,
        "floor": ground.kind,
        "floor_reason": reason,
        "dispatch_bytes": work.num_rows * work.row_bytes,
        "combine_bytes": work.num_rows * 2 * work.hidden,
    }


def _buffer(case: Case, settings: Settings, group: dist.ProcessGroup) -> Buffer:
    """Moewire's buffer of a case; its creation is collective."""
    hint = Buffer.get_ep_buffer_size_hint(
        case.tokens, case.hidden, case.ranks, case.experts, num_slots=case.slots
    )
    return Buffer(
        group,
        hint,
        num_slots=case.slots,
        vector_width=settings.vector_width,
        **settings.tuning,
    )


def _library(kind: str) -> tuple[ctypes.CDLL | None, str]:
    if kind != "c":
        return None, f"--floor {kind} was asked for"
    try:
        return floor.load(), ""
    except CompileError as error:
        return None, str(error)


def _ground(
    work: workload.Workload, file: int, library: ctypes.CDLL | None, spin: float
) -> floor.Floor | NumpyFloor:
    memory = Memory(work, file)
    if library is None:
        return NumpyFloor(work, memory)
    return floor.Floor(work, memory, library, spin)


def _calls(work: workload.Workload, buffer: Buffer, spin: float) -> Calls | None:
    """Moewire called from C; None where there is no compiler."""
    try:
        return Calls(work, buffer.runtime.id.id, load_calls(), spin)
    except CompileError:
        return None


def _verify(
    work: workload.Workload,
    ours: Moewire,
    calls: Calls | None,
    peers: list[Peer],
    group: dist.ProcessGroup,
) -> dict[str, str]:
    """Moewire must give the bits of a plain sum over the own tokens; a wrong peer is left out."""
    expected = workload.expected(work)
    ours.dispatch()
    ours.compute()
    for combine in (ours.combine_zero_copy, ours.combine):
        if not torch.equal(combine(), expected):
            name = combine.__name__
            raise MoewireError(f"rank {work.rank}: wrong result of {name}; nothing was measured")
    if calls is not None:
        calls.timed.dispatch()
        calls.compute()
        calls.timed.combine()
        if not torch.equal(calls.out, expected):
            raise MoewireError(f"rank {work.rank}: wrong result from C; nothing was measured")
    found = {peer.name: first_reason(_difference(peer, expected), group) for peer in peers}
    return {name: reason for name, reason in found.items() if reason}


def _difference(peer: Peer, expected: torch.Tensor) -> str:
    """Why this rank does not trust a peer; empty if it is right."""
    try:
        peer.dispatch()
        peer.compute()
        peer.combine()
        right = _within_tolerance(peer.result(), expected, peer.tolerance)
    except RuntimeError as error:
        return f"{error}"
    return "" if right else "its result differs from the expectation"


def _within_tolerance(result: torch.Tensor, expected: torch.Tensor, tolerance: float) -> bool:
    if tolerance == 0.0:
        return bool(torch.equal(result, expected))
    distance = (result.float() - expected.float()).abs().max()
    return bool(distance <= tolerance * expected.float().abs().max())


def _steps(
    start: Start,
    ours: Moewire,
    calls: Calls | None,
    ground: floor.Floor | NumpyFloor,
    peers: list[Peer],
) -> list[Step]:
    def local(name: str, function: Callable[[], object]) -> Step:
        return Step(name, partial(start.timed, function))

    steps = [
        _floor_step(start, ground, "dispatch"),
        local("moewire_dispatch", ours.dispatch),
        local("", ours.compute),
        _floor_step(start, ground, "combine"),
        local("moewire_combine_zero_copy", ours.combine_zero_copy),
        local("moewire_combine", ours.combine),
    ]
    if calls is not None:
        steps += [
            Step("moewire_c_dispatch", calls.timed.dispatch),
            local("", calls.compute),
            Step("moewire_c_combine_zero_copy", calls.timed.combine),
        ]
    if isinstance(ground, floor.Floor):
        steps += [local("memcpy", ground.memcpy), Step("barrier", partial(_barrier, ground))]
    for peer in peers:
        for name, function in (("dispatch", peer.dispatch), ("", peer.compute)):
            steps.append(_peer_step(start, peer, name, function))
        steps.append(_peer_step(start, peer, "combine", peer.combine))
    return steps


def _floor_step(start: Start, ground: floor.Floor | NumpyFloor, kind: str) -> Step:
    """C takes the time of what is C."""
    if isinstance(ground, floor.Floor):
        return Step(f"floor_{kind}", getattr(ground.timed, kind))
    return Step(f"floor_{kind}", partial(start.timed, getattr(ground, kind)))


def _peer_step(start: Start, peer: Peer, name: str, function: Callable[..., Any]) -> Step:
    name = f"{peer.name}_{name}" if name else ""
    # One that lives in a process of its own waits for the start there.
    return Step(name, function if peer.remote else partial(start.timed, function))


def _barrier(ground: floor.Floor, begin: float) -> tuple[float, float]:
    seconds = ground.barrier_seconds()
    if seconds < 0:
        raise MoewireError("the barrier was not reached by every rank")
    return 0.0, seconds


def _measure(settings: Settings, start: Start, steps: list[Step]) -> Samples:
    samples: Samples = {step.name: [] for step in steps if step.name}
    for repetition in range(settings.warmup + settings.repeat):
        for step in steps:
            span = step.run(start.agree())
            if step.name and repetition >= settings.warmup:
                samples[step.name].append(span)
    return samples
