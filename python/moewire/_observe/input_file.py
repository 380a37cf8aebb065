"""Files of other processes, opened so that none of them can block this process.

The path of such a file may lead to a pipe without a writer, to a device, or to a file that shrinks
while it is read. So a file is opened only after its kind is known, nothing is mapped, and every
read has a bound.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import os
import re
import select
import stat
from pathlib import Path

# Trace files of 48 ranks have about 100 MB.
MAX_FILE_BYTES = 1 << 30
_PART_BYTES = 1 << 20

# How long a pipe may bring nothing: its writer may ask for a password first.
PIPE_TIMEOUT_S = 60.0

# The kernel's numbers. A Python that was built for an old glibc has no names for them.
_F_GET_SEALS = 1034
_MFD_CLOEXEC, _MFD_HUGETLB, _MFD_HUGE_2MB = 1, 4, 21 << 26


class NotReadable(Exception):
    """Why a file is not read."""


def open_memory(path: str) -> int:
    """Opens a memory file of this user, for reading; the caller closes the descriptor.

    ``path`` is in ``/proc/PID/fd``. Raises NotReadable for a file that is no memory file or belongs
    to another user, OSError if it is closed meanwhile.
    """
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)  # this opens no device and waits for no pipe
    try:
        if _mount(place) not in _memory_mounts():
            raise NotReadable("not readable: no memory file")
        _check_owner(os.fstat(place))
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        return _sealable(os.open(f"/proc/self/fd/{place}", flags))
    finally:
        os.close(place)


def _sealable(file: int) -> int:
    """The file, if it is one that can have seals: no other kind than memory files can."""
    try:
        fcntl.fcntl(file, _F_GET_SEALS)
    except OSError:
        os.close(file)
        raise NotReadable("not readable: no memory file") from None
    return file


def read_at(file: int, offset: int, num_bytes: int) -> bytes:
    """A copy of part of a file. Raises NotReadable if the file ends before the part does."""
    found = b""
    while len(found) < num_bytes:
        part = os.pread(file, num_bytes - len(found), offset + len(found))
        if not part:
            have = offset + len(found)
            raise NotReadable(f"not readable: ends after {have} bytes, {offset + num_bytes} needed")
        found += part
    return found


def read_file(path: str) -> bytes:
    """The content of a regular file or of a pipe, such as a shell makes of ``<(command)``.

    Raises NotReadable for another kind of file, for more than MAX_FILE_BYTES, and for a pipe that
    brings nothing for PIPE_TIMEOUT_S.
    """
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)  # this opens no device and waits for no pipe
    try:
        about = os.fstat(place)
        if not (stat.S_ISREG(about.st_mode) or stat.S_ISFIFO(about.st_mode)):
            raise NotReadable("neither a regular file nor a pipe")
        if about.st_size > MAX_FILE_BYTES:
            raise NotReadable(f"{about.st_size} bytes, at most {MAX_FILE_BYTES} allowed")
        file = os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(place)
    try:
        return _read_all(file, stat.S_ISFIFO(about.st_mode))
    finally:
        os.close(file)


def _read_all(file: int, is_pipe: bool) -> bytes:
    found = bytearray()
    while part := _read_part(file, is_pipe and not found):
        found += part
        if len(found) > MAX_FILE_BYTES:
            raise NotReadable(f"more than {MAX_FILE_BYTES} bytes, which are allowed")
    return bytes(found)


def _read_part(file: int, may_begin: bool) -> bytes:
    """The next bytes, b"" at the end. ``may_begin``: a pipe may still wait for its first writer."""
    while (part := _read_now(file)) is None or (not part and may_begin):
        poll = select.poll()
        poll.register(file, select.POLLIN)
        if not poll.poll(PIPE_TIMEOUT_S * 1000):
            raise NotReadable(f"a pipe into which nothing was written for {PIPE_TIMEOUT_S:g} s")
        may_begin = False
    return part


def _read_now(file: int) -> bytes | None:
    """What can be read without waiting; None if a writer is there but has written nothing."""
    try:
        return os.read(file, _PART_BYTES)
    except BlockingIOError:
        return None


def _check_owner(about: os.stat_result) -> None:
    if not stat.S_ISREG(about.st_mode):
        raise NotReadable("not readable: no regular file")
    if not _is_mapped(os.geteuid(), _text("/proc/self/uid_map")):
        raise NotReadable("not readable: this process's user has no number in its user namespace")
    if about.st_uid != os.geteuid():
        raise NotReadable(f"not readable: owned by uid {about.st_uid}")


def _is_mapped(uid: int, uid_map: str) -> bool:
    """Whether the id belongs to one user: all users that are not mapped share one id."""
    ranges = [tuple(map(int, line.split())) for line in uid_map.splitlines()]
    return not ranges or any(first <= uid < first + count for first, _, count in ranges)


def inode(file: int) -> int:
    """The number that names an open memory file. For other kinds of files it means nothing."""
    found = _fdinfo(file, "ino")
    return int(found) if found else os.fstat(file).st_ino  # before Linux 5.14


def _mount(file: int) -> str:
    """The mount that an open file is on; "" if the kernel does not say."""
    return _fdinfo(file, "mnt_id")


def _fdinfo(file: int, name: str) -> str:
    found = re.search(rf"^{name}:\s*(\d+)", _text(f"/proc/self/fdinfo/{file}"), re.MULTILINE)
    return found[1] if found else ""


def _memfd(flags: int) -> int:
    """``os.memfd_create``, which some Pythons lack; -1 if the kernel makes none."""
    return int(ctypes.CDLL(None).memfd_create(b"moewire-look", ctypes.c_uint(flags)))


@functools.cache
def _memory_mounts() -> frozenset[str]:
    """Where the kernel keeps memory files, with pages of the usual size and huge ones.

    Unlike a stat, this never asks a file system that another process serves.
    """
    found = set()
    for flags in (0, _MFD_HUGETLB, _MFD_HUGETLB | _MFD_HUGE_2MB):
        file = _memfd(flags | _MFD_CLOEXEC)
        if file < 0:
            continue  # no pages of that size here
        found.add(_mount(file))
        os.close(file)
    return frozenset(found)


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
