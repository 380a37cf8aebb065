"""The records of one rank, parsed from a copy of its memory.

``core/telemetry`` describes the words. Any process that has the memory mapped can write them. So
each word is read once, and its bounds are checked before it counts or addresses anything.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from .. import _abi as abi

_MAGIC = (0x314C45545F57454D).to_bytes(8, "little")
_FORMAT_VERSION = 3
_PAGE_BYTES = 4096
_SEARCH_BYTES = 1 << 18  # an area begins in here
# What of a rank's memory is read: the area, and the control region before it.
HEAD_BYTES = 2 * _SEARCH_BYTES
_HEADER_WORDS = 32
_RECORD_BYTES = abi.SIZE_OF[abi.mw_record_t]
_MAX_CAPACITY = abi.MW_MAX_RECORDS
_MAX_EXPERTS = abi.LIMITS["num_experts per rank"][1]
_NUM_BUCKETS = 48
_LINK_WORDS = 12
_LINK_BYTES = 128
_MAX_TIME_NS = (1 << 63) - 1

_TIMES = ("time_ns", "send_ns", "wait_ns", "work_ns")
_TOTALS: tuple[str, ...] = ("count", "failed", "cancelled", *_TIMES)
_TOTALS += ("num_bytes", "num_rows", "num_rows_received", "num_tokens", "max_ns")
_NUM_TOTALS = 16
KINDS = ("dispatch", "combine")

CARRIERS = {abi.MW_LINK_TCP: "tcp", abi.MW_LINK_VERBS: "verbs"}
# From the best state to the worst.
LINK_STATES = {
    abi.MW_LINK_UP: "up",
    abi.MW_LINK_UNRESPONSIVE: "unresponsive",
    abi.MW_LINK_BROKEN: "broken",
    abi.MW_LINK_ENDED: "ended",
    abi.MW_LINK_OUT: "out",
}


class Damaged(Exception):
    """A word of the memory has a value that no rank writes; the text names the word."""


class Totals(NamedTuple):
    """Sums of one kind of operation, and how long and how often each rank was waited for."""

    sums: dict[str, int]
    wait_ns_for: list[int]
    last_count: list[int]


class Link(NamedTuple):
    """What a rank sees of a rank with memory that it cannot map; counts as in ``mw_link_t``."""

    rank: int
    carrier: str
    state: str
    num_messages_sent: int
    num_bytes_sent: int
    num_messages_received: int
    num_bytes_received: int
    num_blocked: int
    num_dropped: int
    num_ignored: int
    num_credits: int
    num_max_credits: int
    heard_ns: int
    num_beats: int
    clock_ahead_ns: int


@dataclass(frozen=True)
class Area:
    """One rank at one moment. It refers to no memory but its own."""

    recording: bool
    rank: int
    num_ranks: int
    pid: int
    group: int
    num_records: int
    current_since: int
    epoch: int
    closed: bool
    wall_clock_ns: int
    waits_for: list[int]  # ranks, at this moment
    beat: int  # grows while the rank waits
    totals: dict[str, Totals]  # by kind
    expert_rows: list[int]  # rows received, by local expert
    links: list[Link]  # the ranks that this one reaches by messages
    records: list[abi.mw_record_t]  # the oldest first; empty unless asked for
    num_damaged_records: int


def find_area(head: bytes) -> int | None:
    """Where in the first bytes of a rank's memory the area begins; None: not there yet."""
    for begin in range(0, min(len(head), _SEARCH_BYTES), _PAGE_BYTES):
        if head[begin : begin + 8] == _MAGIC:
            return begin
    return None


def parse(head: bytes, begin: int, again: bytes | None = None) -> Area:
    """The area at ``begin`` of the first bytes of a rank's memory.

    ``again``: a copy that was made after ``head`` was. With it come the records, except those
    that were overwritten in between. Raises Damaged.
    """
    words = _Words(head, begin)
    header = words.read("header", begin, _HEADER_WORDS)
    version = header[1] & 0xFFFFFFFF
    if version != _FORMAT_VERSION:
        raise Damaged(f"of another version: format {version}, {_FORMAT_VERSION} is read here")
    num_ranks = bounded("num_ranks", header[2] >> 32, abi.MW_MAX_RANKS, 1)
    rank = bounded("rank", header[2] & 0xFFFFFFFF, num_ranks - 1)
    area, waits_for = _pair(header[8])
    control = begin - bounded("area_offset", area, begin)
    waiting = words.read("waits_for_offset", control + waits_for, 1)[0]
    records, num_damaged = words.records(header, again)
    return Area(
        recording=bool(header[1] >> 32),
        rank=rank,
        num_ranks=num_ranks,
        pid=header[3] & 0xFFFFFFFF,
        group=header[4],
        num_records=header[10],
        current_since=header[13],
        epoch=header[17],
        closed=bool(header[18]),
        wall_clock_ns=_signed(header[20]),
        waits_for=[r for r in range(num_ranks) if waiting >> r & 1],
        beat=words.read("beat_offset", control + (header[9] & 0xFFFFFFFF), 1)[0],
        totals=words.totals(header, num_ranks),
        expert_rows=words.experts(header),
        links=words.links(header, num_ranks),
        records=records,
        num_damaged_records=num_damaged,
    )


def bounded(name: str, value: int, most: int, least: int = 0) -> int:
    """The value of a word, if it is in its bounds; raises Damaged if not."""
    if value > most:
        raise Damaged(f"damaged: word {name} is {value}, at most {most} allowed")
    if value < least:
        raise Damaged(f"damaged: word {name} is {value}, at least {least} allowed")
    return value


class _Words:
    """Reads words of the copy. Raises Damaged for a word outside of it."""

    def __init__(self, head: bytes, begin: int) -> None:
        self._head = head
        self._begin = begin

    def read(self, name: str, offset: int, count: int) -> list[int]:
        bounded(name, offset, len(self._head) - 8 * count)
        return list(struct.unpack_from(f"<{count}Q", self._head, offset))

    def totals(self, header: list[int], num_ranks: int) -> dict[str, Totals]:
        buckets = bounded("num_buckets", header[9] >> 32, _NUM_BUCKETS, _NUM_BUCKETS)
        arrays = _NUM_TOTALS + 2 * buckets
        size = arrays + 2 * abi.MW_MAX_RANKS
        found = {}
        for number, kind in enumerate(KINDS):
            at = self._begin + 8 * (_HEADER_WORDS + number * size)
            words = self.read("totals", at, size)
            wait, last = words[arrays:], words[arrays + abi.MW_MAX_RANKS :]
            sums = dict(zip(_TOTALS, words, strict=False))
            found[kind] = Totals(sums, wait[:num_ranks], last[:num_ranks])
        return found

    def experts(self, header: list[int]) -> list[int]:
        count = bounded("num_experts", header[5], _MAX_EXPERTS)
        return self.read("experts_offset", self._begin + (header[7] >> 32), count)

    def links(self, header: list[int], num_ranks: int) -> list[Link]:
        offset, size = _pair(header[19])
        if size == 0 and offset == 0:
            return []  # the owner is about to write this
        bounded("link_bytes", size, _LINK_BYTES, _LINK_BYTES)
        found = []
        for rank in range(num_ranks):
            words = self.read("links_offset", self._begin + offset + rank * size, _LINK_WORDS)
            state, carrier = _pair(words[0])
            if state:
                names = (CARRIERS.get(carrier, str(carrier)), LINK_STATES.get(state, str(state)))
                rest = (*_pair(words[8]), words[9], words[10], _signed(words[11]))
                found.append(Link._make((rank, *names, *words[1:8], *rest)))
        return found

    def records(self, header: list[int], again: bytes | None) -> tuple[list[abi.mw_record_t], int]:
        """The records of the ring, without those being overwritten; and the number of damaged
        ones."""
        size, capacity = _pair(header[6])
        bounded("record_bytes", size, _RECORD_BYTES, _RECORD_BYTES)
        bounded("capacity", capacity, _MAX_CAPACITY, 1)
        ring = self._begin + (header[7] & 0xFFFFFFFF)
        bounded("ring_offset", ring, len(self._head) - capacity * size)
        if again is None:
            return [], 0
        whole = list(self._whole(ring, capacity, header[10], again))
        sound = [record for record in whole if _is_sound(record)]
        return sound, len(whole) - len(sound)

    def _whole(
        self, ring: int, capacity: int, num_records: int, again: bytes
    ) -> Iterator[abi.mw_record_t]:
        for number in range(max(0, num_records - capacity), num_records):
            at = ring + number % capacity * _RECORD_BYTES
            data = self._head[at : at + _RECORD_BYTES]
            record = abi.mw_record_t.from_buffer_copy(data)
            if again[at : at + 8] == data[:8] and record.sequence == (number + 1) & 0xFFFFFFFF:
                yield record


def _is_sound(record: abi.mw_record_t) -> bool:
    """Whether the record of an operation is possible."""
    times = (record.start_ns, record.place_ns, record.sent_ns, record.resume_ns, record.seen_ns)
    return (
        record.kind in (abi.MW_RECORD_DISPATCH, abi.MW_RECORD_COMBINE)
        and record.outcome in (abi.MW_OUTCOME_DONE, abi.MW_OUTCOME_FAILED, abi.MW_OUTCOME_CANCELLED)
        and -1 <= record.last_rank < abi.MW_MAX_RANKS
        and all(0 <= time <= _MAX_TIME_NS for time in (*times, record.end_ns))
    )


def _pair(word: int) -> tuple[int, int]:
    return word & 0xFFFFFFFF, word >> 32


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
