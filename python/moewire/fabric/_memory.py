"""The memory behind a region: any writable buffer, or a torch tensor, held until released."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from .._base.numbers import refuse


class Memory:
    """Where memory is, and what keeps it there."""

    __slots__ = ("_held", "address", "num_bytes")

    def __init__(self, address: int, num_bytes: int, held: Any) -> None:
        self.address = address
        self.num_bytes = num_bytes
        self._held = held

    def release(self) -> None:
        """Lets go of the memory; a buffer may be resized again."""
        held, self._held = self._held, None
        if isinstance(held, tuple):  # a view, and the ctypes array over it, which holds the view
            view, exported = held
            del held, exported
            view.release()


def memory_of(memory: Any) -> Memory:
    """The memory of a tensor or buffer, without a copy."""
    torch = sys.modules.get("torch")  # if there is a tensor, torch is loaded
    if torch is not None and isinstance(memory, torch.Tensor):
        return _tensor(memory)
    try:
        view = memoryview(memory)
    except TypeError:
        kind = type(memory).__name__
        raise refuse("memory", f"a {kind}", "a writable buffer or a torch tensor") from None
    if view.readonly or not view.c_contiguous or view.nbytes == 0:
        is_so = "read-only" if view.readonly else "empty" if not view.nbytes else "not contiguous"
        view.release()
        raise refuse("memory", f"a buffer that is {is_so}", "a writable, contiguous one with bytes")
    flat = view.cast("B")
    view.release()
    exported = (ctypes.c_char * flat.nbytes).from_buffer(flat)
    return Memory(ctypes.addressof(exported), flat.nbytes, (flat, exported))


def _tensor(tensor: Any) -> Memory:
    if tensor.device.type != "cpu":
        raise refuse("memory", f"a tensor on {tensor.device}", "one on cpu")
    if not tensor.is_contiguous():
        raise refuse("memory", f"a tensor with strides {tuple(tensor.stride())}", "contiguous ones")
    num_bytes = tensor.numel() * tensor.element_size()
    if num_bytes == 0:
        raise refuse("memory", "a tensor without elements", "at least one element")
    return Memory(tensor.data_ptr(), num_bytes, tensor)
