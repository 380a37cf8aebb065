"""Where the bytes of a buffer are, whether it can be written or not."""

from __future__ import annotations

import ctypes
import sys
from typing import Any, ClassVar

from .._base.numbers import refuse


class _Exported(ctypes.Structure):
    """``Py_buffer``, as the stable ABI of Python has it."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_void_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


_get = ctypes.pythonapi.PyObject_GetBuffer
_get.argtypes = (ctypes.py_object, ctypes.POINTER(_Exported), ctypes.c_int)
_release = ctypes.pythonapi.PyBuffer_Release
_release.argtypes = (ctypes.POINTER(_Exported),)
_release.restype = None
_WRITABLE = 1
_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_bytes.argtypes = (ctypes.c_char_p, ctypes.c_ssize_t)
_bytes.restype = ctypes.py_object


def unfilled(num_bytes: int) -> bytes:
    """Bytes that are still to be written, once, before anything else sees them; more than one."""
    return bytes(_bytes(None, num_bytes))


def _named(name: str, at: int | None) -> str:
    return name if at is None else f"{name}[{at}]"


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
        view = _Exported()
        try:
            _get(buffer, view, _WRITABLE if writable else 0)
        except (TypeError, BufferError, ValueError):  # numpy raises the last one
            kind = "a writable, contiguous buffer" if writable else "a contiguous buffer"
            given = f"a {type(buffer).__name__}"
            raise refuse(_named(name, at), given, f"{kind} or a torch tensor") from None
        self._held = view
        self.address: int = view.buf or 0
        self.num_bytes: int = view.len

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
        if isinstance(held, _Exported):
            _release(held)

    def __del__(self) -> None:
        self.release()
