"""Ranks that run on this machine, seen from outside: /proc and their memory files, read-only.

Nothing is asked of the ranks and nothing is written, so a rank that is frozen is seen as well
as one that runs. ``core/telemetry`` has the words in the memory that is read here.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from . import _abi as abi

_PROC = Path("/proc")
_RANK_LINK = re.compile(r"/memfd:moewire-rank-(\d+)( \(deleted\))?$")
_MEMBERS_LINK = re.compile(r"/memfd:moewire-members( \(deleted\))?$")

_MAGIC = (0x314C45545F57454D).to_bytes(8, "little")
_FORMAT_VERSION = 3
_PAGE_BYTES = 4096
_SEARCH_BYTES = 1 << 18  # an area begins in here
_HEADER_WORDS = 32
_RECORD_BYTES = abi.SIZE_OF[abi.mw_record_t]

_TIMES = ("time_ns", "send_ns", "wait_ns", "work_ns")
_TOTALS: tuple[str, ...] = ("count", "failed", "cancelled", *_TIMES)
_TOTALS += ("num_bytes", "num_rows", "num_rows_received", "num_tokens", "max_ns")
_NUM_TOTALS = 16
_KINDS = ("dispatch", "combine")

CARRIERS = {abi.MW_LINK_TCP: "tcp", abi.MW_LINK_VERBS: "verbs"}
# From well to worse.
LINK_STATES = {
    abi.MW_LINK_UP: "up",
    abi.MW_LINK_SILENT: "silent",
    abi.MW_LINK_BROKEN: "broken",
    abi.MW_LINK_ENDED: "ended",
    abi.MW_LINK_OUT: "out",
}
_LINK_WORDS = 12


class Totals(NamedTuple):
    """Sums of one kind of operation, and per rank how long and how often it was waited for."""

    sums: dict[str, int]
    wait_ns_for: list[int]
    last_count: list[int]


class Link(NamedTuple):
    """What a rank sees of one whose memory it cannot map; counts as in ``mw_link_t``."""

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


class Area:
    """What one rank records, in a mapping of its memory file."""

    def __init__(self, memory: mmap.mmap, begin: int) -> None:
        self._memory = memory
        self._begin = begin
        header = self.words(0, _HEADER_WORDS)
        self.version, self.recording = header[1] & 0xFFFFFFFF, bool(header[1] >> 32)
        self.rank, self.num_ranks = _pair(header[2])
        self.pid, self.num_slots = _pair(header[3])
        self.group = header[4]
        self.num_experts = header[5]
        self.record_bytes, self.capacity = _pair(header[6])
        self._ring, self._experts = _pair(header[7])
        area, self._waits_for = _pair(header[8])
        self._control = begin - area
        self._beat, self._buckets = _pair(header[9])
        self.num_records, self.num_events = header[10], header[11]
        self.current, self.current_since = header[12], header[13]
        self.slab_bytes, self.prefault_bytes = header[15], header[16]
        self.epoch, self.closed = header[17], bool(header[18])
        self._links, self._link_bytes = _pair(header[19])
        self.wall_clock_ns = _signed(header[20])

    def words(self, first: int, count: int) -> list[int]:
        """Words of the area by index."""
        return self._read(self._begin + 8 * first, count)

    def _read(self, offset: int, count: int) -> list[int]:
        return list(struct.unpack_from(f"<{count}Q", self._memory, offset))

    @property
    def waits_for(self) -> list[int]:
        """The ranks that this one waits for at this moment."""
        word = self._read(self._control + self._waits_for, 1)[0]
        return [rank for rank in range(abi.MW_MAX_RANKS) if word >> rank & 1]

    @property
    def beat(self) -> int:
        """Grows while the rank waits."""
        return self._read(self._control + self._beat, 1)[0]

    def totals(self, kind: str) -> Totals:
        """Sums since the buffer was made."""
        arrays = _NUM_TOTALS + 2 * self._buckets
        size = arrays + 2 * abi.MW_MAX_RANKS
        words = self.words(_HEADER_WORDS + _KINDS.index(kind) * size, size)
        wait, last = words[arrays:], words[arrays + abi.MW_MAX_RANKS :]
        sums = dict(zip(_TOTALS, words, strict=False))
        return Totals(sums, wait[: self.num_ranks], last[: self.num_ranks])

    def expert_rows(self) -> list[int]:
        """Rows received, by local expert."""
        return self._read(self._begin + self._experts, self.num_experts)

    def links(self) -> list[Link]:
        """The ranks that this one reaches by messages."""
        found = []
        for rank in range(self.num_ranks):
            at = self._begin + self._links + rank * self._link_bytes
            words = self._read(at, _LINK_WORDS)
            state, carrier = _pair(words[0])
            if state:
                names = (CARRIERS.get(carrier, str(carrier)), LINK_STATES.get(state, str(state)))
                rest = (*_pair(words[8]), words[9], words[10], _signed(words[11]))
                found.append(Link._make((rank, *names, *words[1:8], *rest)))
        return found

    def records(self) -> list[abi.mw_record_t]:
        """The ring, the oldest first; records that are being overwritten are left out."""
        found = []
        for number in range(max(0, self.num_records - self.capacity), self.num_records):
            at = self._begin + self._ring + number % self.capacity * self.record_bytes
            data = self._memory[at : at + _RECORD_BYTES]
            record = abi.mw_record_t.from_buffer_copy(data)
            whole = self._memory[at : at + 8] == data[:8]
            if whole and record.sequence == (number + 1) & 0xFFFFFFFF:
                found.append(record)
        return found


def _pair(word: int) -> tuple[int, int]:
    return word & 0xFFFFFFFF, word >> 32


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


@dataclass
class Rank:
    """One rank's memory, and the process behind it."""

    inode: int
    area: Area
    pid: int | None  # None: no process says that this memory is its own
    process_state: str  # as in /proc/PID/stat; "X" without a process

    @property
    def rank(self) -> int:
        return self.area.rank

    @property
    def alive(self) -> bool:
        return self.process_state not in ("X", "Z")


@dataclass
class Group:
    """Ranks that share one member set; ``id`` is the inode of the page that holds it."""

    id: int
    epoch: int
    active: list[int]
    ranks: list[Rank] = field(default_factory=list)


@dataclass
class _Files:
    """Memory files by inode: where they can be opened, and who has them open."""

    ranks: dict[int, str] = field(default_factory=dict)
    members: dict[int, str] = field(default_factory=dict)
    holders: dict[int, set[int]] = field(default_factory=dict)


def find() -> list[Group]:
    """The groups whose processes this user may look into."""
    files = _scan()
    groups: dict[int, Group] = {}
    for inode, path in files.ranks.items():
        area = _area(path)
        if area is None:
            continue
        pid = _owner(area, files.holders[inode])
        rank = Rank(inode, area, pid, _state(pid))
        if area.group not in groups:
            groups[area.group] = Group(area.group, *_members(files.members.get(area.group), area))
        groups[area.group].ranks.append(rank)
    for group in groups.values():
        group.ranks = _present(group.ranks)
    return sorted(groups.values(), key=lambda group: group.id)


def _scan() -> _Files:
    files = _Files()
    for pid in _processes():
        for path, link in _links(pid):
            try:
                inode = os.stat(path).st_ino
            except OSError:
                continue  # closed meanwhile
            if _RANK_LINK.match(link):
                files.ranks[inode] = path
                files.holders.setdefault(inode, set()).add(pid)
            else:
                files.members[inode] = path
    return files


def _processes() -> Iterator[int]:
    for name in os.listdir(_PROC):
        if name.isdigit():
            yield int(name)


def _links(pid: int) -> Iterator[tuple[str, str]]:
    folder = f"{_PROC}/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return  # another user's, or ended
    for name in names:
        path = f"{folder}/{name}"
        try:
            link = os.readlink(path)
        except OSError:
            continue
        if _RANK_LINK.match(link) or _MEMBERS_LINK.match(link):
            yield path, link


def _map(path: str, most: int) -> mmap.mmap | None:
    try:
        with open(path, "rb") as file:
            size = min(os.fstat(file.fileno()).st_size, most)
            return mmap.mmap(file.fileno(), size, mmap.MAP_SHARED, mmap.PROT_READ)
    except (OSError, ValueError):
        return None


def _area(path: str) -> Area | None:
    """None: not there yet, or of another version."""
    memory = _map(path, 2 * _SEARCH_BYTES)
    if memory is None:
        return None
    for begin in range(0, min(len(memory), _SEARCH_BYTES), _PAGE_BYTES):
        if memory[begin : begin + 8] == _MAGIC:
            area = Area(memory, begin)
            return area if area.version == _FORMAT_VERSION else None
    return None


def _members(path: str | None, area: Area) -> tuple[int, list[int]]:
    """Epoch and members; what a rank knows of it if nobody has the page open any more."""
    memory = _map(path, _PAGE_BYTES) if path else None
    if memory is None:
        return area.epoch, []
    word: int = struct.unpack_from("<Q", memory)[0]
    return word >> abi.MW_MAX_RANKS, [r for r in range(abi.MW_MAX_RANKS) if word >> r & 1]


def _owner(area: Area, holders: set[int]) -> int | None:
    """The process that made the memory: it is the one with the id that it wrote there."""
    for pid in holders:
        if _innermost_id(pid) == area.pid:
            return pid
    return None


def _innermost_id(pid: int) -> int | None:
    """A process's id in its own pid namespace."""
    try:
        text = (_PROC / str(pid) / "status").read_text()
    except OSError:
        return None
    found = re.search(r"^NSpid:.*?(\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else pid


def _state(pid: int | None) -> str:
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return "X"
    return text.rpartition(")")[2].split()[0]


def _present(ranks: list[Rank]) -> list[Rank]:
    """One per number: the one that lives, else the one of the latest epoch."""
    best: dict[int, Rank] = {}
    for rank in ranks:
        other = best.get(rank.rank)
        if other is None or _age(rank) > _age(other):
            best[rank.rank] = rank
    return [best[number] for number in sorted(best)]


def _age(rank: Rank) -> Any:
    return (rank.alive, rank.area.epoch, rank.area.num_records)
