"""Unauthenticated clients at every socket at which ranks listen."""

from __future__ import annotations

import os

import pytest

from harness.team import Team
from hosts import hostile, sniff
from hosts.layout import hosts, placed


@pytest.mark.all
@pytest.mark.parametrize("protection", ["digest", "encrypt"])
def test_unauthenticated_clients_change_nothing(team: Team, protection: str) -> None:
    """Noise, truncated and changed handshakes, replays, absurd lengths, and slow clients."""
    places = [*hosts("0|1", MOEWIRE_PROTECTION=protection), {}]
    zero, one, attacker = team.run(3, placed, places, hostile.besieged, timeout=120)
    assert attacker["control"] >= 1 and attacker["ports"] >= 2, attacker
    assert attacker["recorded"] >= 2 or os.geteuid() != 0, attacker
    for rank in (zero, one):
        assert rank["exchanges"] > 0 and rank["grown"] < hostile.MAX_GROWTH_BYTES, rank


@pytest.mark.usefixtures("namespaces")  # a process that may make namespaces may also sniff packets
@pytest.mark.parametrize(("protection", "words"), [("digest", sniff.WORDS), ("encrypt", ())])
def test_nobody_reads(team: Team, protection: str, words: tuple[bytes, ...]) -> None:
    """Link offers and names of carriers, both on control connections and next to rows."""
    places = [*hosts("0|1", MOEWIRE_PROTECTION=protection), {}]
    *_, heard = team.run(3, placed, places, sniff.overheard)
    assert heard == list(words)
