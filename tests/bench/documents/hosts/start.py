"""Starts the processes on both hosts, and collects what they measured."""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

from moewire.bench import launch, workload
from moewire.bench.cases import Case
from moewire.bench.peers import Unavailable

from ..peers import venvs
from ..peers.mooncake import PACKAGE, VERSION
from . import report
from .network import Cable
from .place import Place, RankPlace, Settings


def writes(
    cable: Cable, folder: str, settings: Settings, key: str, timeout: float
) -> dict[str, Any]:
    """What ``sides.run`` gives, and why peers are missing."""
    missing: dict[str, str] = {}
    if "mooncake" in settings.peers:
        try:
            venvs.installed(PACKAGE, VERSION)  # once, before two processes want it
        except Unavailable as error:
            missing["mooncake"] = str(error)
    kept = settings._replace(peers=tuple(name for name in settings.peers if name not in missing))
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(2)]
    try:
        arguments = [
            (Place(host, path, folder, *(pipe[host] for pipe in pipes)), kept, f"1 {key}")
            for host, path in enumerate(cable.paths)
        ]
        found: dict[str, Any] = launch.run_all(_side, arguments, timeout)[0]
    finally:
        for pipe in pipes:
            for end in pipe:
                end.close()
    found["peer_failures"] |= missing
    return found


def exchanges(
    cable: Cable, folder: str, settings: Settings, key: str, num_ranks: int, timeout: float
) -> dict[str, Any]:
    """One number of ranks, all links."""
    own = os.path.join(folder, f"ranks-{num_ranks}")
    os.mkdir(own)
    half = num_ranks // 2
    places = [
        RankPlace(rank, cable.paths[rank // half], own, rank // half, key)
        for rank in range(num_ranks)
    ]
    arguments = [(place, settings, num_ranks) for place in places]
    ranks = launch.run_all(_rank, arguments, timeout)
    shape = (settings.tokens, settings.hidden, settings.experts, settings.topk)
    routing = workload.make(Case("hosts", num_ranks, *shape), settings.seed, 0).routing
    found: dict[str, Any] = report.exchange(num_ranks, settings, routing, ranks)
    return found


def _side(place: Place, settings: Settings, keys: str) -> dict[str, Any]:
    from . import sides

    return sides.run(place, settings, keys)


def _rank(place: RankPlace, settings: Settings, num_ranks: int) -> dict[int, dict[str, Any]]:
    from . import exchanges

    return exchanges.run(place, settings, num_ranks)
