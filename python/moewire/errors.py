"""Exceptions. Each also derives from the built-in exception that a caller would expect.

``status`` is the ``mw_status_t`` of an exception (``capi/include/moewire.h``), 0 where
there is none.
"""

from __future__ import annotations

from typing import ClassVar


class MoewireError(Exception):
    """Base of everything that Moewire raises on purpose."""

    status: ClassVar[int] = 0


class InvalidArgument(MoewireError, ValueError):
    """An argument is wrong; the text names it, its value and what is allowed.

    Nothing happened: the same operation may be called again.
    """

    status = -1


class StaleHandleError(MoewireError, RuntimeError):
    """The handle was released, or its slot serves a later operation."""

    status = -3


class UnknownHandleError(StaleHandleError):
    """The library knows no such object: it was closed, or never existed."""

    status = -2


class ClosedError(MoewireError, RuntimeError):
    """The buffer is closed: by ``close()``, a defect or lack of memory, never by a lost rank."""

    status = -4


class DeadlineError(MoewireError, TimeoutError):
    """A rank or the store (named) did not come or answer in time, or a combine buffer is still
    read."""

    status = -5


class PeerLostError(MoewireError, RuntimeError):
    """A peer died during a rendezvous, a routing's call lacks it, or (DeepEP's interface) a result
    does."""

    status = -6


class PeerMismatchError(MoewireError, RuntimeError):
    """Ranks disagree on a parameter; the text names it and both values."""

    status = -7


class FencedError(MoewireError, RuntimeError):
    """The group went on without this rank, which was late beyond a deadline.

    Or the group may have: between hosts, a rank that hears too few others to decide leaves by
    itself. The text names the ranks that it did not hear (docs/faults.md).

    ``update_ep_member()`` brings this rank back.
    """

    status = -8


class OutOfMemoryError(MoewireError, MemoryError):
    """Memory could not be allocated."""

    status = -9


class SystemCallError(MoewireError, OSError):
    """A system call failed; the text names it."""

    status = -10


class ForkedError(MoewireError, RuntimeError):
    """Used in a child of fork(); start processes with spawn or forkserver instead."""

    status = -11


class PanicError(MoewireError, RuntimeError):
    """A defect in the library; the buffer is unusable. Please report it."""

    status = -12


class CancelledError(MoewireError, RuntimeError):
    """The operation was given up, for example by Ctrl-C or ``handle.release()``."""

    status = -13


class NotCombinedError(MoewireError, RuntimeError):
    """A peer released the operation without combining it; the text names the rank."""

    status = -14


class MetadataError(MoewireError, ValueError):
    """A peer's metadata is truncated, altered, or from another version."""

    status = -15


class UpdatingError(MoewireError, RuntimeError):
    """A membership update has ended the operation, or is going on."""

    status = -16


class WouldBlockError(MoewireError, BlockingIOError):
    """A bound is reached (the text names it); nothing happened: try again later."""

    status = -17


class ConnectingError(MoewireError, BlockingIOError):
    """A connection is being made; nothing happened: carry notes and try again."""

    status = -18


class UnreachableError(MoewireError, ConnectionError):
    """A connection could not be made, or it ended before the operation did."""

    status = -19


class RefusedError(MoewireError, PermissionError):
    """The peer refused: its region is closed, too small, or does not allow the access."""

    status = -20


class NoResourceError(MoewireError, OSError):
    """The system has no more of something: descriptors, connections, memory that may be locked.

    The text names it and the limit.
    """

    status = -21


class BusyError(MoewireError, RuntimeError):
    """The object is still in use; nothing happened: try again later.

    For a dispatch: ``num_slots`` operations are held. Combine, release or drop a handle first.
    """

    status = -22


class NotSupportedError(MoewireError, RuntimeError):
    """No carrier works here, or the one chosen does not, or not in this mode of a fabric."""

    status = -23


class NoDeviceError(MoewireError, RuntimeError):
    """No CUDA driver, or no suitable device; the text says what was tried."""

    status = -24


class DeviceError(MoewireError, RuntimeError):
    """A call of the CUDA driver failed; the text names the call and quotes the driver."""

    status = -25


class UnsupportedError(MoewireError, NotImplementedError):
    """Part of another library's interface that Moewire lacks; the text says what to use."""


class LibraryError(MoewireError, ImportError):
    """The shared library is missing, cannot be loaded, or has another ABI version."""


_ALL: tuple[type[MoewireError], ...] = (
    InvalidArgument,
    StaleHandleError,
    UnknownHandleError,
    ClosedError,
    DeadlineError,
    PeerLostError,
    PeerMismatchError,
    FencedError,
    OutOfMemoryError,
    SystemCallError,
    ForkedError,
    PanicError,
    CancelledError,
    NotCombinedError,
    MetadataError,
    UpdatingError,
    WouldBlockError,
    ConnectingError,
    UnreachableError,
    RefusedError,
    NoResourceError,
    BusyError,
    NotSupportedError,
    NoDeviceError,
    DeviceError,
)

BY_STATUS: dict[int, type[MoewireError]] = {error.status: error for error in _ALL}


def from_status(status: int, text: str) -> MoewireError:
    """The exception for a status.

    Args:
        status: negative, an ``mw_status_t``.
        text: the library's error text.

    Returns:
        An exception of the class in ``BY_STATUS``, to be raised.
    """
    kind = BY_STATUS.get(status, MoewireError)
    return kind(text or f"moewire: status {status}")
