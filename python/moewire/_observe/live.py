"""Ranks that run on this machine, seen from outside: /proc and their memory files, read-only.

Nothing is asked of the ranks and nothing is written, so a frozen rank is seen as well as a running
one. Files of other users are not read, and nothing is mapped. The memory belongs to other
processes, which may be broken or hostile. So it is copied with bounds, and each number is checked
against its bounds. A file that cannot be read, or is damaged, costs its own row and no other.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from .. import _abi as abi
from . import area as _area
from . import input_file
from .area import LINK_STATES, Area, Link, Totals

__all__ = ["LINK_STATES", "Area", "Found", "Group", "Link", "Rank", "Refused", "Totals", "find"]

_PROC = Path("/proc")
_RANK_LINK = re.compile(r"/memfd:moewire-rank-(\d{1,9})( \(deleted\))?$")
_MEMBERS_LINK = re.compile(r"/memfd:moewire-members( \(deleted\))?$")
# Memory files beyond this number are only counted.
_MAX_FILES = 8192


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


class Refused(NamedTuple):
    """A rank with memory that is not shown, and why."""

    rank: str  # its number, as its file is called
    pids: list[int]  # the processes that have the memory open
    why: str

    def __str__(self) -> str:
        pids = ", ".join(map(str, self.pids[:3])) + (", ..." if len(self.pids) > 3 else "")
        of = f" of process {pids}" if pids else ""
        return f"rank {self.rank}{of}: {self.why}"


@dataclass
class Found:
    """What a search has found."""

    groups: list[Group] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)


@dataclass
class _Files:
    """Memory files by inode: where they can be opened, and which processes have them open."""

    ranks: dict[int, tuple[str, str]] = field(default_factory=dict)  # path, number of the rank
    members: dict[int, str] = field(default_factory=dict)
    holders: dict[int, set[int]] = field(default_factory=dict)


def find(records_of: int | None = None) -> Found:
    """The groups of this user, and the ranks that belong to none because they cannot be read.

    ``records_of``: the group with ranks that come with their records.
    """
    files, found = _scan(), Found()
    groups: dict[int, Group] = {}
    for count, (inode, (path, number)) in enumerate(files.ranks.items()):
        pids = sorted(files.holders[inode])
        if count == _MAX_FILES:
            why = f"{len(files.ranks) - count} memory files more than {_MAX_FILES} are not read"
            found.refused.append(Refused("-", [], why))
            break
        try:
            area = _area_of(path, records_of)
        except (FileNotFoundError, ProcessLookupError):
            continue  # closed meanwhile
        except (input_file.NotReadable, _area.Damaged, OSError) as error:
            found.refused.append(Refused(number, pids, _reason(error)))
            continue
        pid = _owner(area, files.holders[inode])
        if area.group not in groups:
            groups[area.group] = Group(area.group, *_members(files.members.get(area.group), area))
        groups[area.group].ranks.append(Rank(inode, area, pid, _state(pid)))
    for group in groups.values():
        group.ranks = _present(group.ranks)
    found.groups = sorted(groups.values(), key=lambda group: group.id)
    return found


def _reason(error: Exception) -> str:
    return f"not readable: {error.strerror}" if isinstance(error, OSError) else str(error)


def _scan() -> _Files:
    files = _Files()
    for pid in _processes():
        for path, link in _links(pid):
            try:
                inode = _inode(path)
            except OSError:
                continue  # closed meanwhile
            if rank := _RANK_LINK.search(link):
                files.ranks.setdefault(inode, (path, rank[1]))
                files.holders.setdefault(inode, set()).add(pid)
            else:
                files.members.setdefault(inode, path)
    return files


def _inode(path: str) -> int:
    """The inode, without asking the file's own file system, which a process may serve."""
    file = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        return input_file.inode(file)
    finally:
        os.close(file)


def _processes() -> Iterator[int]:
    for name in os.listdir(_PROC):
        if name.isdecimal():
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


def _area_of(path: str, records_of: int | None) -> Area:
    """What a rank has recorded. Raises NotReadable, Damaged, OSError."""
    file = input_file.open_memory(path)
    try:
        size = min(os.fstat(file).st_size, _area.HEAD_BYTES)
        head = input_file.read_at(file, 0, size)
        begin = _area.find_area(head)
        if begin is None:
            raise _area.Damaged("has recorded nothing yet")
        area = _area.parse(head, begin)
        if area.group != records_of:
            return area
        return _area.parse(head, begin, input_file.read_at(file, 0, size))
    finally:
        os.close(file)


def _members(path: str | None, area: Area) -> tuple[int, list[int]]:
    """Epoch and members; what a rank knows of them if the page cannot be read any more."""
    if path is None:
        return area.epoch, []
    try:
        file = input_file.open_memory(path)
        try:
            word = int.from_bytes(input_file.read_at(file, 0, 8), "little")
        finally:
            os.close(file)
    except (input_file.NotReadable, OSError):
        return area.epoch, []
    return word >> abi.EPOCH_SHIFT, [r for r in range(abi.MW_MAX_RANKS) if word >> r & 1]


def _owner(area: Area, holders: set[int]) -> int | None:
    """The process that made the memory: the one with the id that it wrote there."""
    for pid in holders:
        if _innermost_id(pid) == area.pid:
            return pid
    return None


def _innermost_id(pid: int) -> int | None:
    """A process's id in its own pid namespace."""
    text = _text(pid, "status")
    if not text:
        return None
    found = re.search(r"^NSpid:.*?(\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else pid


def _state(pid: int | None) -> str:
    words = _text(pid, "stat").rpartition(")")[2].split()
    return words[0] if words else "X"


def _text(pid: int | None, name: str) -> str:
    """The content of a /proc file of a process; "" if it has ended. Names may be any bytes."""
    try:
        return (_PROC / str(pid) / name).read_text(errors="replace")
    except OSError:
        return ""


def _present(ranks: list[Rank]) -> list[Rank]:
    """One rank per number: the living one, else the one of the latest epoch."""
    best: dict[int, Rank] = {}
    for rank in ranks:
        other = best.get(rank.rank)
        if other is None or _age(rank) > _age(other):
            best[rank.rank] = rank
    return [best[number] for number in sorted(best)]


def _age(rank: Rank) -> Any:
    return (rank.alive, rank.area.epoch, rank.area.num_records)
