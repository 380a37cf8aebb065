"""Trials of ``moewire doctor``: how death is noticed, limits, what a sandbox forbids."""

from __future__ import annotations

import mmap
import os
import re
import resource
import socket
from pathlib import Path
from typing import Any

from .. import _abi as abi

# Python has no name for it.
_SO_PEERPIDFD = 77
_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
# Descriptors of one buffer in the largest group: per rank a pidfd and, during the rendezvous, a
# connection; and a few of its own.
FILES_NEEDED = 2 * abi.MW_MAX_RANKS + 16
# Python has no name for it: Linux 5.14.
_MADV_POPULATE_READ = 22
# What the library raises the soft limit to, where the hard one allows it.
MOST_FILES = 1 << 20


_HUGE_PAGE = 2 << 20


def huge_pages() -> dict[str, str]:
    """What ``huge_pages=`` of a buffer would get here, by trying it."""
    return {"advise": _advised_huge_pages(), "require": _reserved_huge_pages()}


def _advised_huge_pages() -> str:
    file = os.memfd_create("moewire-doctor")
    try:
        os.ftruncate(file, 4 * _HUGE_PAGE)
        with mmap.mmap(file, 4 * _HUGE_PAGE) as memory:
            memory.madvise(mmap.MADV_HUGEPAGE)
            for page in range(0, 4 * _HUGE_PAGE, mmap.PAGESIZE):
                memory[page] = 1
            return "granted" if _in_huge_pages("moewire-doctor") else "not granted by this kernel"
    except (OSError, AttributeError) as error:
        return f"not granted: {error}"
    finally:
        os.close(file)


def _in_huge_pages(name: str) -> bool:
    """Whether a file of that name is mapped in huge pages somewhere in this process."""
    text = Path("/proc/self/smaps").read_text()
    parts = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", text, flags=re.MULTILINE)
    sizes = [re.findall(r"ShmemPmdMapped:\s+(\d+)", part) for part in parts if name in part]
    return any(int(size) for found in sizes for size in found)


def _reserved_huge_pages() -> str:
    try:
        file = os.memfd_create("moewire-doctor", os.MFD_CLOEXEC | os.MFD_HUGETLB | os.MFD_HUGE_2MB)
    except (OSError, AttributeError) as error:
        return f"not possible: {error}"
    try:
        os.ftruncate(file, _HUGE_PAGE)
        mmap.mmap(file, _HUGE_PAGE).close()
    except OSError as error:
        return f"none is free: {error}"
    finally:
        os.close(file)
    return "at least one page of 2 MiB is free"


def liveness() -> dict[str, Any]:
    """How a rank would notice another's death: the first way that works, as in the library."""
    by_peer, by_id = _peer_pidfd_works(), _pidfd_works()
    if by_peer:
        how = "pidfd of the connection's peer (SO_PEERPIDFD): at once, in any pid namespace"
    elif by_id:
        how = "pidfd opened by process id: at once, within one pid namespace"
    else:
        how = "end of the connection: at once, unless a forked child holds it open"
    return {"death_noticed_by": how, "so_peerpidfd": by_peer, "pidfd_open": by_id}


def _peer_pidfd_works() -> bool:
    one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, two:
        try:
            os.close(one.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD))
        except OSError:
            return False
    return True


def _pidfd_works() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (OSError, AttributeError):
        return False
    return True


def limits() -> dict[str, Any]:
    """Soft limits of this process, and what ranks need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    raised = raised_files(soft, hard)
    return {
        "open_files": _limit(resource.RLIMIT_NOFILE, 0),
        "open_files_hard": _limit(resource.RLIMIT_NOFILE, 1),
        "open_files_with_buffers": "unlimited" if raised == resource.RLIM_INFINITY else raised,
        "open_files_needed": FILES_NEEDED,
        "buffers_that_fit": {
            f"of_{ranks}_ranks_of_one_host": buffers_that_fit(ranks, raised)
            for ranks in (8, abi.MW_MAX_RANKS)
        },
        "file_size": _limit(resource.RLIMIT_FSIZE, 0),
        "address_space": _limit(resource.RLIMIT_AS, 0),
    }


def raised_files(soft: int, hard: int) -> int:
    """The soft limit of open files once there is a buffer: the library raises it."""
    if resource.RLIM_INFINITY in (soft, hard):
        return soft if soft == resource.RLIM_INFINITY else max(soft, MOST_FILES)
    return max(soft, min(hard, MOST_FILES))


def buffers_that_fit(num_ranks: int, limit: int) -> int | str:
    """How many buffers of so many ranks of one host a process may have open at a time.

    Each buffer has three descriptors, and all of them share two and one per peer
    (docs/architecture.md). On an old kernel each buffer has one or two per peer instead. During
    the rendezvous there are two more per peer, and six more. The process itself has some open.
    """
    if limit == resource.RLIM_INFINITY:
        return "unlimited"
    peers, pidfds = num_ranks - 1, _peer_pidfd_works() or _pidfd_works()
    shared = 2 + peers * pidfds
    memories = min(1, peers) if _maps_without_the_file() else peers
    each = 2 + memories + peers * (not pidfds)
    rendezvous = 2 * peers + 6
    return max(0, (limit - len(os.listdir("/proc/self/fd")) - shared - rendezvous) // each)


def _maps_without_the_file() -> bool:
    """Whether this kernel lets a rank map a peer's memory whose file it has closed."""
    with mmap.mmap(-1, mmap.PAGESIZE) as memory:
        try:
            memory.madvise(_MADV_POPULATE_READ)
        except OSError:
            return False
    return True


def populates_for_reading() -> bool:
    """Whether pages can be made present without a fault, which clients of a store's memory need."""
    return _maps_without_the_file()


def _limit(which: int, part: int) -> int | str:
    value = resource.getrlimit(which)[part]
    return "unlimited" if value == resource.RLIM_INFINITY else value


def security() -> dict[str, Any]:
    """What a sandbox might forbid, tried out; and settings that do not matter."""
    try:
        scope = _YAMA.read_text().strip()
    except OSError:
        scope = "absent"
    return {
        "memory_files": _memory_file(),
        "abstract_sockets": _abstract_socket(),
        "yama_ptrace_scope": f"{scope} (does not matter: nothing attaches to a rank)",
    }


def _memory_file() -> str:
    try:
        os.close(os.memfd_create("moewire-doctor", os.MFD_CLOEXEC))
    except OSError as error:
        return f"failed: {error}"
    return "allowed"


def _abstract_socket() -> str:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
            one.bind(f"\0moewire-doctor-{os.getpid()}")
    except OSError as error:
        return f"failed: {error}"
    return "allowed"
