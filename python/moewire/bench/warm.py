"""Pairs of dispatch and combine without rest, with warm caches as in a decoder's next layer.

Every round begins at an agreed time and goes through ``LEAD`` pairs that do not count, and
``PAIRS`` that do. A round's sample is the slowest rank's time per pair. Where ranks share cores
it is the time from the first rank's first measured operation to the last rank's end, per pair:
the only number that includes every rank's turn.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from . import floor
from .calls import Calls
from .numpy_floor import NumpyFloor
from .ours import Moewire
from .peers import Peer
from .start import Start
from .timed import Round, python_round

Rounds = dict[str, list[Round]]
# Hundreds of milliseconds per pair would take too long.
_TOO_SLOW = ("mooncake",)


def measure(
    start: Start,
    ground: floor.Floor | NumpyFloor,
    calls: Calls | None,
    ours: Moewire,
    peers: list[Peer],
    repeat: int,
) -> Rounds:
    """One round of each in turn, ``repeat`` times."""
    series = _series(start, ground, calls, ours, peers)
    found: Rounds = {name: [] for name in series}
    for _ in range(repeat):
        for name, run in series.items():
            found[name].append(run(start.agree()))
    return found


def _series(
    start: Start,
    ground: floor.Floor | NumpyFloor,
    calls: Calls | None,
    ours: Moewire,
    peers: list[Peer],
) -> dict[str, Callable[[float], Round]]:
    def here(dispatch: Callable[[], Any], combine: Callable[[], Any]) -> Callable[[float], Round]:
        return partial(_from_python, start, dispatch, combine)

    series: dict[str, Callable[[float], Round]] = {}
    if isinstance(ground, floor.Floor):
        series["floor"] = ground.timed.round
    else:
        series["floor"] = here(ground.dispatch, ground.combine)
    if calls is not None:
        series["moewire_c"] = calls.timed.round
    series["moewire"] = here(ours.dispatch, ours.combine_in_place)
    for peer in peers:
        if peer.name not in _TOO_SLOW:
            series[peer.name] = (
                partial(_of_remote, peer) if peer.remote else here(peer.dispatch, peer.combine)
            )
    return series


def _from_python(
    start: Start, dispatch: Callable[[], Any], combine: Callable[[], Any], begin: float
) -> Round:
    start.wait(begin)
    return python_round(dispatch, combine)


def _of_remote(peer: Any, begin: float) -> Round:
    return Round(*peer.pairs(begin))
