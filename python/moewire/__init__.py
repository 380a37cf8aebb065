"""Expert-parallel dispatch and combine for Mixture-of-Experts models.

Importing this package loads neither torch nor the shared library and starts no thread;
the first use of a name that needs them does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._version import __version__
from .errors import (
    BusyError,
    CancelledError,
    ClosedError,
    ConnectingError,
    DeadlineError,
    DeviceError,
    FencedError,
    ForkedError,
    InvalidArgument,
    LibraryError,
    MetadataError,
    MoewireError,
    NoDeviceError,
    NoResourceError,
    NotCombinedError,
    NotSupportedError,
    OutOfMemoryError,
    PanicError,
    PeerLostError,
    PeerMismatchError,
    RefusedError,
    StaleHandleError,
    SystemCallError,
    UnknownHandleError,
    UnreachableError,
    UnsupportedError,
    UpdatingError,
    WouldBlockError,
)

if TYPE_CHECKING:
    from ._ep.flat_results import FlatHandle, FlatReceived
    from ._ep.routed import Scattered
    from ._ep.routing import Routing
    from .buffer import Buffer
    from .event import EventOverlap
    from .handle import Handle

__all__ = [
    "Buffer",
    "BusyError",
    "CancelledError",
    "ClosedError",
    "ConnectingError",
    "DeadlineError",
    "DeviceError",
    "EventOverlap",
    "FencedError",
    "FlatHandle",
    "FlatReceived",
    "ForkedError",
    "Handle",
    "InvalidArgument",
    "LibraryError",
    "MetadataError",
    "MoewireError",
    "NoDeviceError",
    "NoResourceError",
    "NotCombinedError",
    "NotSupportedError",
    "OutOfMemoryError",
    "PanicError",
    "PeerLostError",
    "PeerMismatchError",
    "RefusedError",
    "Routing",
    "Scattered",
    "StaleHandleError",
    "SystemCallError",
    "UnknownHandleError",
    "UnreachableError",
    "UnsupportedError",
    "UpdatingError",
    "WouldBlockError",
    "__version__",
]

_LAZY = {
    "Buffer": "buffer",
    "EventOverlap": "event",
    "FlatHandle": "_ep.flat_results",
    "FlatReceived": "_ep.flat_results",
    "Handle": "handle",
    "Routing": "_ep.routing",
    "Scattered": "_ep.routed",
}


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{module}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
