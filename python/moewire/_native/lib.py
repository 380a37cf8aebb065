"""Loads ``libmoewire.so``, at first use, and turns its statuses into exceptions.

``MOEWIRE_LIBRARY`` names another file. Nothing else in the package loads a library.
Any thread may use a loaded library; after ``fork()`` every call in the child raises
``ForkedError``, because a Go runtime does not survive a fork.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from .. import _abi as abi
from ..errors import ForkedError, LibraryError, from_status

ENVIRONMENT_PATH = "MOEWIRE_LIBRARY"
FILE_NAME = "libmoewire.so"

_FORKED_TEXT = (
    "the moewire library was loaded before fork(), and this is the forked child; "
    "start processes with the 'spawn' or 'forkserver' method"
)


def library_path() -> Path:
    """The file that would be loaded."""
    override = os.environ.get(ENVIRONMENT_PATH)
    return Path(override) if override else Path(__file__).resolve().parents[1] / FILE_NAME


def _refuse_fork(*_: object) -> NoReturn:
    raise ForkedError(_FORKED_TEXT)


class Library(abi.Functions):
    """The loaded library."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.forked = False
        # The soft limit of descriptors as it was said last. Go raises it in a thread that the
        # library starts while it is loaded, so it is read before.
        self.open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        dll = _open(path)
        for name, (result, arguments) in abi.SIGNATURES.items():
            setattr(self, name.removeprefix("mw_"), _bind(dll, path, name, result, arguments))
        given = self.abi_version()
        if given != abi.MW_ABI_VERSION:
            raise LibraryError(
                f"{path} has ABI version {given}; this package needs {abi.MW_ABI_VERSION}"
            )

    def check(self, status: int) -> int:
        """Returns the status, or raises its exception if it is an error."""
        if status < 0:
            raise from_status(status, self.error_text())
        return status

    def error_text(self) -> str:
        """The error text of the last failing call of this thread."""
        return (self.last_error() or b"").decode("utf-8", "replace")

    def refuse_fork(self) -> None:
        """Raises ``ForkedError`` in a forked child, where torch would say that it has no CUDA."""
        if self.forked:
            _refuse_fork()

    def disable(self) -> None:
        """Makes every function raise ``ForkedError``; runs in a forked child."""
        self.forked = True
        for name in abi.SIGNATURES:
            setattr(self, name.removeprefix("mw_"), _refuse_fork)


def _open(path: Path) -> ctypes.CDLL:
    if not path.exists():
        raise LibraryError(
            f"the moewire library is missing: no file {path}; install the wheel, build it with "
            f"'make lib', or set {ENVIRONMENT_PATH}"
        )
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise LibraryError(f"cannot load {path}: {error}") from error


def _bind(
    dll: ctypes.CDLL, path: Path, name: str, result: Any, arguments: tuple[Any, ...]
) -> Callable[..., Any]:
    try:
        function = getattr(dll, name)
    except AttributeError:
        raise LibraryError(f"{path} has no function {name}; it is of another version") from None
    function.restype = result
    function.argtypes = arguments
    return function  # type: ignore[no-any-return]


_FIRST_CAPACITY = 1 << 16


def read_json(function: Callable[..., int], *arguments: Any) -> tuple[int, Any]:
    """Calls a function that writes JSON text; its status, and the value if that is MW_OK."""
    capacity = _FIRST_CAPACITY
    while True:
        text, length = ctypes.create_string_buffer(capacity), ctypes.c_uint64()
        status = function(*arguments, text, capacity, ctypes.byref(length))
        if status == abi.MW_OK:
            return status, json.loads(text.raw[: length.value])
        if status != abi.MW_ERR_INVALID_ARGUMENT or length.value <= capacity:
            return status, None
        capacity = 2 * length.value  # it may grow until the next call


def fill(config: ctypes.Structure, fields: Mapping[str, int | bytes]) -> list[Any]:
    """Sets fields; returns what has to live until the library has read them."""
    texts = []
    for name, value in fields.items():
        if isinstance(value, bytes):
            text = ctypes.create_string_buffer(value, max(1, len(value)))
            texts.append(text)
            setattr(config, name, abi.mw_bytes_t(ctypes.addressof(text), len(value)))
        else:
            setattr(config, name, value)
    return texts


_lock = threading.Lock()
_library: Library | None = None


def library() -> Library:
    """The library, loaded and checked at the first call. Thread-safe."""
    global _library
    if _library is None:
        with _lock:
            if _library is None:
                _library = Library(library_path())
    return _library


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    if _library is not None:
        _library.disable()


os.register_at_fork(after_in_child=_after_fork_in_child)
