"""Dispatch and combine of ranks on two hosts, beside gloo and plain sockets with as many bytes."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from moewire.bench import worker, workload
from moewire.bench.cases import Case
from moewire.bench.gloo import Gloo
from moewire.bench.ours import Moewire
from moewire.bench.start import Start
from moewire.buffer import Buffer
from moewire.errors import MoewireError

from . import native, network, processors, rows
from .place import RankPlace, Settings
from .rendezvous import remote_sockets

PROTECTIONS = ("digest", "encrypt")


class Step(NamedTuple):
    """Something that every rank does at once; without a name it is not measured."""

    name: str
    run: Callable[[], object]


def run(place: RankPlace, settings: Settings, num_ranks: int) -> dict[int, dict[str, Any]]:
    """By link: seconds of each step (begin and end), and bytes that this rank's host sent."""
    network.enter(place.namespace)
    warnings.filterwarnings("ignore", module="torch")
    os.environ["MOEWIRE_KEY"] = place.key
    sharers = num_ranks
    if not settings.share_processors:
        processors.confine(place.host)
        sharers //= processors.NUM_HOSTS
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // sharers))
    case = Case(
        "hosts", num_ranks, settings.tokens, settings.hidden, settings.experts, settings.topk
    )
    work = workload.make(case, settings.seed, place.rank)
    rendezvous = worker.Place(place.rank, place.folder, "")
    with worker.gloo(case, rendezvous) as group, contextlib.ExitStack() as stack:
        steps = _steps(stack, work, place, group, case, settings.peers)
        start = Start(group, None)
        return {link: _measure(link, place, settings, start, steps) for link in settings.links}


def _steps(
    stack: contextlib.ExitStack,
    work: workload.Workload,
    place: RankPlace,
    group: dist.ProcessGroup,
    case: Case,
    peers: Sequence[str],
) -> list[Step]:
    """Everything is compared with a plain sum first."""
    expected = workload.expected(work)
    dispatch, combine = stack.enter_context(_floor(work, place, group))
    steps = [Step("sockets dispatch", dispatch.run), Step("sockets combine", combine.run)]
    for protection in PROTECTIONS:
        ours = Moewire(work, stack.enter_context(_buffer(place, group, case, protection)))
        ours.dispatch()
        ours.compute()
        _same(f"moewire, {protection}", ours.combine_zero_copy(), expected)
        steps += [
            Step(f"moewire, {protection} dispatch", ours.dispatch),
            Step("", ours.compute),
            Step(f"moewire, {protection} combine", ours.combine_zero_copy),
        ]
    return steps + (_gloo(work, group, expected) if "gloo" in peers else [])


def _gloo(work: workload.Workload, group: dist.ProcessGroup, expected: torch.Tensor) -> list[Step]:
    peer = Gloo(work, group)
    for act in (peer.dispatch, peer.compute, peer.combine):
        act()
    _same("gloo", peer.result(), expected)
    return [
        Step("gloo dispatch", peer.dispatch),
        Step("", peer.compute),
        Step("gloo combine", peer.combine),
    ]


def _same(name: str, found: torch.Tensor, expected: torch.Tensor) -> None:
    if not torch.equal(found, expected):
        raise MoewireError(f"{name}: wrong result; nothing was measured")


@contextlib.contextmanager
def _buffer(
    place: RankPlace, group: dist.ProcessGroup, case: Case, protection: Any
) -> Iterator[Buffer]:
    hint = Buffer.get_ep_buffer_size_hint(case.tokens, case.hidden, case.ranks, case.experts)
    listen = network.ADDRESSES[place.host]
    with Buffer(group, hint, listen=listen, protection=protection) as buffer:
        half = case.ranks // 2
        for path in buffer.paths():
            remote = path["rank"] // half != place.host
            if remote != (path["carrier"] == "tcp"):
                raise MoewireError(f"rank {path['rank']} is reached by {path['carrier']}")
        yield buffer


@contextlib.contextmanager
def _floor(
    work: workload.Workload, place: RankPlace, group: dist.ProcessGroup
) -> Iterator[tuple[native.Exchange, native.Exchange]]:
    """A dispatch's rows, each token once for each remote rank; a combine's rows, one per selection.

    Outputs of different experts cannot be added up before they arrive: the bits would differ.
    """
    half = work.num_ranks // 2
    remote = range((1 - place.host) * half, (2 - place.host) * half)
    count = partial(rows.to_rank, work.routing, work.num_experts)
    selected = partial(rows.selections, work.routing, work.num_experts)
    row, rank = 2 * work.hidden, work.rank
    library = native.load()
    with remote_sockets(group, place, list(remote)) as sockets:
        files = [one.fileno() for one in sockets]
        sent = [row * count(rank, peer) for peer in remote]
        back = [row * count(peer, rank) for peer in remote]
        dispatch = native.Exchange(library, files, sent, back)
        sent = [row * selected(peer, rank) for peer in remote]
        back = [row * selected(rank, peer) for peer in remote]
        yield dispatch, native.Exchange(library, files, sent, back)


def _measure(
    megabits: int, place: RankPlace, settings: Settings, start: Start, steps: list[Step]
) -> dict[str, Any]:
    """All steps in turn. What a host sends during one is counted from start to start."""
    num_ranks = dist.get_world_size()
    if place.rank % (num_ranks // 2) == 0:
        network.shape(megabits)
    spans: dict[str, list[tuple[float, float]]] = {step.name: [] for step in steps if step.name}
    sent: dict[str, list[int]] = {name: [] for name in spans}
    begin, before = start.agree(), network.sent_bytes()
    for repetition in range(settings.warmup + settings.repeat):
        for step in steps:
            span = start.timed(step.run, begin)
            begin, now = start.agree(), network.sent_bytes()
            if step.name and repetition >= settings.warmup:
                spans[step.name].append(span)
                sent[step.name].append(now - before)
            before = now
    return {"spans": spans, "sent_bytes": sent}
