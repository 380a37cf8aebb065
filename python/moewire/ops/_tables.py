"""What operators cannot take as arguments: buffers by number, and handles by what a tensor holds.

A handle's tensor is one int64, its number. Its memory belongs to a Python object, and what the
handle stands for ends with that memory: as long as the tensor, or a graph that saved it for a
backward, is alive. A copy of the tensor does not keep it.
"""

from __future__ import annotations

import itertools
from weakref import WeakValueDictionary

import torch

from .._base import check
from .._base.opaque import opaque
from ..buffer import Buffer
from ..errors import BusyError, UnknownHandleError

MAX_BUFFERS = 4096
MAX_HANDLES = 65536

_buffers: WeakValueDictionary[int, Buffer] = WeakValueDictionary()
_buffer_numbers = itertools.count(1)


@opaque
def register(buffer: Buffer) -> int:
    """The number by which operators know a buffer. Call it outside of compiled code.

    Args:
        buffer: a ``moewire.Buffer``. It is not kept alive.

    Returns:
        A number of this process, the same at every call. It ends with the buffer.

    Raises:
        InvalidArgument: not a buffer.
        BusyError: 4096 buffers are registered and alive.
    """
    if not isinstance(buffer, Buffer):
        raise check.refuse("buffer", type(buffer).__name__, "a moewire.Buffer")
    for number, known in list(_buffers.items()):
        if known is buffer:
            return number
    if len(_buffers) >= MAX_BUFFERS:
        raise BusyError(f"{MAX_BUFFERS} buffers are registered; drop one")
    number = next(_buffer_numbers)
    _buffers[number] = buffer
    return number


def buffer_of(number: int) -> Buffer:
    """The buffer that was registered."""
    found = _buffers.get(number)
    if found is None:
        raise check.refuse("buffer", number, "what moewire.ops.register returned, of a live Buffer")
    return found


class _Memory(bytearray):
    """The memory of a handle's tensor, and what the handle stands for."""

    held: object


_handles: WeakValueDictionary[int, _Memory] = WeakValueDictionary()
_handle_numbers = itertools.count(1)


def refuse_full() -> None:
    """Raises if no handle more may be kept, before anything is sent for it."""
    if len(_handles) >= MAX_HANDLES:
        raise BusyError(f"{MAX_HANDLES} handles are alive; drop some, or the graphs that hold them")


def keep(held: object) -> torch.Tensor:
    """A handle's tensor."""
    number = next(_handle_numbers)
    memory = _Memory(number.to_bytes(8, "little"))
    memory.held = held
    _handles[number] = memory
    return torch.frombuffer(memory, dtype=torch.int64)


def held_by(handle: torch.Tensor) -> object:
    """What a handle's tensor stands for."""
    check.tensor("handle", handle, torch.int64, (1,))
    memory = _handles.get(int(handle))
    if memory is None:
        raise UnknownHandleError(
            "handle: it has ended with its tensor; pass that, not a copy of it"
        )
    return memory.held


def num_handles() -> int:
    """How many are alive."""
    return len(_handles)
