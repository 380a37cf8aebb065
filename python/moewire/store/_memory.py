"""Where the bytes of a buffer are, whether it can be written or not."""

from __future__ import annotations

import ctypes
import sys
from array import array
from collections.abc import Sequence
from itertools import repeat
from typing import Any

from .._base.numbers import refuse

# A ``Py_buffer``, as the stable ABI of Python has it, in 64-bit words.
_VIEW_WORDS, _ADDRESS, _NUM_BYTES = 10, 0, 2
_VIEW_BYTES = 8 * _VIEW_WORDS
_NO_VIEW = array("Q", bytes(_VIEW_BYTES))
_WRITABLE = 1

_get = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p, ctypes.c_int)(
    ("PyObject_GetBuffer", ctypes.pythonapi)
)
_release = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("PyBuffer_Release", ctypes.pythonapi))
_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_bytes.argtypes = (ctypes.c_char_p, ctypes.c_ssize_t)
_bytes.restype = ctypes.py_object


def unfilled(num_bytes: int) -> bytes:
    """Bytes that are still to be written, once, before anything else sees them; more than one."""
    return bytes(_bytes(None, num_bytes))


def _named(name: str, at: int | None) -> str:
    return name if at is None else f"{name}[{at}]"


def _places(words: array[int]) -> range:
    at, num_words = words.buffer_info()
    return range(at, at + 8 * num_words, _VIEW_BYTES)


class Views:
    """The bytes of several buffers, in place until ``release``, or until this object is gone."""

    __slots__ = ("_words",)

    def __init__(self, num_buffers: int) -> None:
        self._words = _NO_VIEW * num_buffers

    def fill(self, buffers: Sequence[Any], writable: bool) -> bool:
        """Takes hold of the buffers. False: one of them is none, or not as it has to be."""
        flags = repeat(_WRITABLE if writable else 0)
        try:
            # ``any`` calls it for each of them, without a step of the interpreter: it returns 0.
            any(map(_get, buffers, _places(self._words), flags))
        except (TypeError, BufferError, ValueError):  # numpy raises the last one
            return False
        return True

    @property
    def addresses(self) -> array[int]:
        return self._words[_ADDRESS::_VIEW_WORDS]

    @property
    def lengths(self) -> array[int]:
        return self._words[_NUM_BYTES::_VIEW_WORDS]

    def release(self) -> None:
        """Lets go of the buffers. Idempotent."""
        words, self._words = self._words, array("Q")
        any(map(_release, _places(words)))  # it returns None; of what is not held it does nothing

    def __del__(self) -> None:
        self.release()


class Memory:
    """The bytes of a buffer, in place until ``release``, or until this object is gone."""

    __slots__ = ("_held", "address", "num_bytes")

    def __init__(self, name: str, buffer: Any, writable: bool, at: int | None = None) -> None:
        """``name`` is that of the argument, or of the list in which ``buffer`` is item ``at``."""
        self._held: Any = None
        torch = sys.modules.get("torch")  # if there is a tensor, torch is loaded
        if torch is not None and isinstance(buffer, torch.Tensor):
            self._tensor(_named(name, at), buffer)
            return
        views = Views(1)
        if not views.fill((buffer,), writable):
            kind = "a writable, contiguous buffer" if writable else "a contiguous buffer"
            given = f"a {type(buffer).__name__}"
            raise refuse(_named(name, at), given, f"{kind} or a torch tensor")
        self._held = views
        (self.address,), (self.num_bytes,) = views.addresses, views.lengths

    def _tensor(self, name: str, tensor: Any) -> None:
        if tensor.device.type != "cpu" or not tensor.is_contiguous():
            given = f"a tensor on {tensor.device} with strides {tuple(tensor.stride())}"
            raise refuse(name, given, "one on cpu, contiguous")
        self._held = tensor
        self.address = tensor.data_ptr()
        self.num_bytes = tensor.numel() * tensor.element_size()

    def release(self) -> None:
        """Lets go of the buffer. Idempotent."""
        held, self._held = self._held, None
        if isinstance(held, Views):
            held.release()
