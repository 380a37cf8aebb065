"""The warnings of ``moewire doctor``, each with the command that fixes it, or the word "none"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _abi as abi
from . import _between_hosts

Report = dict[str, Any]
Advice = dict[str, str]
Check = Callable[[Report], tuple[str, str] | None]

_SHMEM = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
# Enough for several buffers of the largest group.
_FILES_WISHED = 4096


def warnings(report: Report) -> list[Advice]:
    """Everything that is worth a change, the most serious first."""
    found: list[Advice] = []
    for check in CHECKS:
        answer = check(report)
        if answer is not None:
            what, fix = answer
            found.append({"what": what, "fix": fix})
    return found


def fix_for_absent(reason: str) -> str:
    """For a transport or device that the library does not have."""
    if "one model of GPU" in reason:
        return "none; docs/cuda.md says what was shown on which"
    return "see rdma, between hosts" if reason.startswith("verbs:") else "see the reason"


def _library(report: Report) -> tuple[str, str] | None:
    error = report["library"].get("error")
    if error is None:
        return None
    return (
        f"the library cannot be used: {error}",
        "make lib   (in the source tree; else: pip install --force-reinstall moewire)",
    )


def _memory_files(report: Report) -> tuple[str, str] | None:
    answer = report["security"]["memory_files"]
    if answer == "allowed":
        return None
    return (
        f"memfd_create {answer}; ranks share memory by it",
        "docker run --security-opt seccomp=unconfined   (or allow memfd_create in the profile)",
    )


def _sockets(report: Report) -> tuple[str, str] | None:
    answer = report["security"]["abstract_sockets"]
    if answer == "allowed":
        return None
    return (
        f"an abstract unix socket {answer}; ranks meet at one",
        "docker run --security-opt apparmor=unconfined   (or allow unix sockets in the profile)",
    )


def _torch(report: Report) -> tuple[str, str] | None:
    if report["torch"] is not None:
        return None
    return ("torch is not installed; moewire.Buffer needs it", 'pip install "torch>=2.6" numpy')


def _open_files(report: Report) -> tuple[str, str] | None:
    limits = report["limits"]
    most, needed = limits["open_files_with_buffers"], limits["open_files_needed"]
    if most == "unlimited" or most >= needed:
        return None
    # The library raises the soft limit by itself: the hard one is in the way.
    return f"{most} files may be open; a buffer of {abi.MW_MAX_RANKS} ranks needs {needed}", (
        f"echo '* hard nofile {_FILES_WISHED}' | sudo tee -a /etc/security/limits.conf   "
        f"(then log in again; in a container: docker run --ulimit nofile={_FILES_WISHED})"
    )


def _file_size(report: Report) -> tuple[str, str] | None:
    limit = report["limits"]["file_size"]
    if limit == "unlimited":
        return None
    return (
        f"files may have {limit} bytes at most; a rank's memory is one file, and a larger one "
        "ends the process (SIGXFSZ)",
        "ulimit -f unlimited",
    )


def _address_space(report: Report) -> tuple[str, str] | None:
    limit = report["limits"]["address_space"]
    if limit == "unlimited":
        return None
    return (
        f"the address space is limited to {limit} bytes; every rank maps the memory of all",
        "ulimit -v unlimited",
    )


def _liveness(report: Report) -> tuple[str, str] | None:
    liveness = report["liveness"]
    if liveness["so_peerpidfd"] or liveness["pidfd_open"]:
        return None
    return (
        "no pidfd can be had: a rank's death shows only by the end of its connection, which a "
        "forked child can keep open",
        "docker run --security-opt seccomp=unconfined   (outside containers: Linux 5.3 or newer)",
    )


def _processors(report: Report) -> tuple[str, str] | None:
    usable, online = report["cpus"]["usable"], report["cpus"]["online"]
    if usable >= 2:
        return None
    what = "one processor may be used; ranks take turns, and every wait is a switch"
    if online > 1:
        return what, f"taskset -cp 0-{online - 1} $$   (in the shell that starts the ranks)"
    return what, "none"


def _vectors(report: Report) -> tuple[str, str] | None:
    if report["library"].get("vector_width", 1):
        return None
    return ("this processor has no vector code in Moewire; plain Go computes, slowly", "none")


def _huge_pages(report: Report) -> tuple[str, str] | None:
    setting = report["memory"]["shmem_huge_pages"]
    if setting not in ("never", "deny"):
        return None
    return (
        f"shared memory gets no huge pages ({setting}); with them first touches would fault less "
        "often",
        f"echo within_size | sudo tee {_SHMEM}   (rows then become resident 2 MiB at a time)",
    )


def _engines(report: Report) -> tuple[str, str] | None:
    """The first engine with a plug-in that the user asked for and that is not used."""
    for name, engine in report["engines"].items():
        if engine.get("asked_for") and "fix" in engine:
            return f"{name}: moewire's plug-in is {engine['plug_in']}", engine["fix"]
    return None


def _store(report: Report) -> tuple[str, str] | None:
    """Of the block store that the environment names."""
    found = report["block_store"]
    if "problem" not in found:
        return None
    return f"block store: {found['problem']}", found["fix"]


def _hosts(check: Callable[[Report], tuple[str, str] | None]) -> Check:
    return lambda report: check(report["between_hosts"])


CHECKS: tuple[Check, ...] = (
    _library,
    _memory_files,
    _sockets,
    _torch,
    _open_files,
    _file_size,
    _address_space,
    _liveness,
    _processors,
    _vectors,
    _huge_pages,
    _engines,
    _store,
    *map(
        _hosts,
        (
            _between_hosts.no_way,
            _between_hosts.loopback,
            _between_hosts.unused_device,
            _between_hosts.little_locked,
        ),
    ),
)
