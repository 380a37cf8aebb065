"""The two processes that write to one another: host 0 leads and takes the time, host 1 obeys."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from moewire.bench.peers import Unavailable
from moewire.bench.tables import progress
from moewire.errors import MoewireError

from . import cells, fabrics, native, network, plain, processors
from .cells import Cell, Sample
from .memory import Memory
from .mooncake import Mooncake
from .place import Place, Settings

# So that the other side has begun to wait for bytes.
_LEAD_SECONDS = 0.001
_REST_SECONDS = 0.3
PEERS = ("gloo", "mooncake")


class Series(Protocol):
    """One way to send bytes to the other host."""

    @property
    def name(self) -> str: ...
    @property
    def delivers(self) -> bool: ...
    def write(self, cell: Cell) -> float: ...
    def serve(self, cell: Cell) -> None: ...
    def processor_seconds(self) -> float: ...
    def close(self) -> None: ...


def run(place: Place, settings: Settings, keys: str) -> dict[str, Any]:
    """What host 0 has measured: cells in order, and why peers are missing. Host 1 returns
    nothing."""
    network.enter(place.namespace)
    if not settings.share_processors:
        processors.confine(place.host)
    warnings.filterwarnings("ignore", module="torch")
    todo = cells.cells(settings.links, settings.sizes, settings.connections)
    memory = Memory(cells.memory_bytes(todo), settings.seed)
    if place.host == 0:
        memory.fill()
    with _series(place, memory, settings, keys) as (series, missing):
        if place.host == 1:
            _serve(place, memory, {one.name: one for one in series})
            return {}
        lead = _Lead(place, series, settings)
        found = []
        for number, cell in enumerate(todo, 1):
            progress(f"[{number}/{len(todo)}] {cell.title}")
            found.append(lead.cell(cell))
        progress("")
        lead.order("end")
        return {"cells": found, "peer_failures": missing}


@contextlib.contextmanager
def _series(
    place: Place, memory: Memory, settings: Settings, keys: str
) -> Iterator[tuple[list[Series], dict[str, str]]]:
    """Collective: all series, in the same order on both hosts."""
    library = native.load()
    most = max(settings.connections)
    with contextlib.ExitStack() as stack:
        made: list[Series] = []
        sockets = plain.connected(place, most)
        made += [
            plain.Copy(library, sockets, memory, number) for number in range(len(cells.FLOORS))
        ]
        stack.callback(made[0].close)
        numbers = sorted({1, *settings.connections})
        opened = stack.enter_context(fabrics.open_(place, memory, numbers, keys))
        made += [fabrics.Writes(library, opened, kind) for kind in fabrics.PROTECTIONS]
        made.append(fabrics.PythonWrites(library, opened, "digest"))
        missing = {}
        for name in settings.peers:
            peer, reason = _peer(place, _openers(place, memory, numbers)[name])
            if peer is not None:
                stack.callback(peer.close)
            if reason:
                missing[name] = reason
            elif peer is not None:
                made.append(peer)
        yield made, missing


def _openers(place: Place, memory: Memory, numbers: list[int]) -> dict[str, Callable[[], Series]]:
    return {
        "gloo": lambda: plain.Gloo(place, memory, max(numbers)),
        "mooncake": lambda: Mooncake(place, memory, numbers),
    }


def _peer(place: Place, make: Callable[[], Series]) -> tuple[Series | None, str]:
    """Collective: a peer, and why one of the hosts does not have it."""
    peer, reason = None, ""
    try:
        peer = make()
    except Unavailable as error:
        reason = str(error)
    places = peer.places() if isinstance(peer, Mooncake) else {}
    place.orders.send((reason, places))
    theirs, remote_places = place.orders.recv()
    if isinstance(peer, Mooncake) and not theirs:
        peer.reach(remote_places)
    return peer, reason or theirs


class _Lead:
    """Host 0: tells host 1 the next step, and keeps the times."""

    def __init__(self, place: Place, series: list[Series], settings: Settings) -> None:
        self._place, self._series, self._settings = place, series, settings
        self._megabits = -1
        self._at_rest = {one.name: self._resting(one) for one in series}

    def _resting(self, one: Series) -> float:
        """The processor time that its processes use while idle, per second."""
        before = self._used(one)
        time.sleep(_REST_SECONDS)
        seconds, processor = (b - a for a, b in zip(before, self._used(one), strict=True))
        return processor / seconds

    def _used(self, one: Series) -> Sample:
        """Until now."""
        processor = one.processor_seconds() + self.order("processor", one.name)
        return Sample(time.perf_counter(), processor)

    def order(self, *words: Any) -> Any:
        """What host 1 answers once it has done it."""
        self._place.orders.send(words)
        return self._answer()

    def _answer(self) -> Any:
        answer, failure = self._place.orders.recv()
        if failure:
            raise MoewireError(f"host 1: {failure}")
        return answer

    def cell(self, cell: Cell) -> dict[str, Any]:
        """Every series once and compared; then in turn, ``repeat`` times."""
        if cell.megabits != self._megabits:
            self._megabits = cell.megabits
            network.shape(cell.megabits)
            self.order("shape", cell.megabits)
        for one in self._series:
            self._checked(one, cell)
        samples: dict[str, list[Sample]] = {one.name: [] for one in self._series}
        for number in range(self._settings.warmup + self._settings.repeat):
            for one in self._series:
                sample = self._burst(one, cell)
                if number >= self._settings.warmup:
                    samples[one.name].append(sample)
        return cells.summarise(cell, samples)

    def _checked(self, one: Series, cell: Cell) -> None:
        self.order("clear")
        self._burst(one, cell)
        if one.delivers and not self.order("has", cell):
            raise MoewireError(f"{one.name}: wrong bytes, {cell.title}; nothing was measured")

    def _burst(self, one: Series, cell: Cell) -> Sample:
        before = self._used(one)
        self.order("serve", one.name, cell)
        time.sleep(_LEAD_SECONDS)
        seconds = one.write(cell)
        self._answer()
        passed, processor = (b - a for a, b in zip(before, self._used(one), strict=True))
        return Sample(seconds, max(0.0, processor - passed * self._at_rest[one.name]))


def _serve(place: Place, memory: Memory, series: dict[str, Series]) -> None:
    """Host 1."""
    todo: dict[str, Callable[..., Any]] = {
        "shape": network.shape,
        "clear": memory.clear,
        "has": memory.has,
        "processor": lambda name: series[name].processor_seconds(),
        "end": lambda: None,
    }
    while True:
        word, *arguments = place.orders.recv()
        if word == "serve":
            place.orders.send((None, ""))
            name, cell = arguments
            word, arguments = "", [cell]
            todo[""] = series[name].serve
        try:
            place.orders.send((todo[word](*arguments), ""))
        except (MoewireError, RuntimeError) as error:
            place.orders.send((None, f"{type(error).__name__}: {error}"))
        if word == "end":
            return
