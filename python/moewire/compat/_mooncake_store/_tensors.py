"""The calls of ``MooncakeDistributedStore`` for tensors of torch.

A block of a tensor is a header and the tensor's bytes: 8 bytes that mark it, the number of
dimensions in 8 bytes, the name of the dtype in 16, the sizes in 8 bytes each, and zeros up to a
multiple of 64. It is not Mooncake's layout.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Sequence
from typing import Any

from ._base import as_many
from ._codes import BAD_ARGUMENT, Problem, log
from ._config import ReplicateConfig, pin_of
from ._copies import CopyCalls
from ._memory import piece
from ._raw import RawCalls

_MARK = b"MWTENSOR"
_HEAD = struct.Struct("<8sQ16s")
_MAX_DIMENSIONS = 64


class TensorCalls(CopyCalls, RawCalls):
    """Tensors of any device are copied to the host; those that are returned are the CPU's."""

    def put_tensor(self, key: str, tensor: Any) -> int:
        """Puts a tensor.

        Args:
            key: its key.
            tensor: of any shape, and any dtype that is not quantized.

        Returns:
            As ``put``.
        """
        return self.batch_pub_tensor([key], [tensor])[0]

    def pub_tensor(self, key: str, tensor: Any, config: ReplicateConfig | None = None) -> int:
        """As ``put_tensor``; ``config`` says how it is kept."""
        return self.batch_pub_tensor([key], [tensor], config)[0]

    def batch_put_tensor(self, keys: Sequence[str], tensors_list: Sequence[Any]) -> list[int]:
        """As ``put_tensor`` for each key; by position."""
        return self.batch_pub_tensor(keys, tensors_list)

    def batch_pub_tensor(
        self,
        keys: Sequence[str],
        tensors_list: Sequence[Any],
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        """As ``pub_tensor`` for each key; by position."""
        return self._tensors("batch_pub_tensor", keys, tensors_list, config, replace=False)

    def upsert_tensor(self, key: str, tensor: Any) -> int:
        """As ``put_tensor``, in place of the block that there is."""
        return self._tensors("upsert_tensor", [key], [tensor], None, replace=True)[0]

    def _tensors(
        self,
        name: str,
        keys: Sequence[str],
        tensors: Sequence[Any],
        config: ReplicateConfig | None,
        *,
        replace: bool,
    ) -> list[int]:
        def call() -> list[int]:
            blocks, pin_s = self._copying(), pin_of(config, len(keys))
            as_many(keys, tensors_list=tensors)
            put = blocks.replace if replace else blocks.store
            held: list[Any] = []

            def parts(at: int) -> list[Any]:
                held.append(_on_host(tensors[at]))
                return _bytes_of(held[-1])

            return self._for_each(name, keys, parts, lambda some, data: put(some, data, pin_s))

        return self._run(name, call, lambda code: [code] * len(keys))

    def get_tensor(self, key: str) -> Any:
        """Gets a tensor.

        Args:
            key: its key.

        Returns:
            The tensor; None for a miss, and for a block that is no tensor.
        """
        return self.batch_get_tensor([key])[0]

    def batch_get_tensor(self, keys: Sequence[str]) -> list[Any]:
        """As ``get_tensor`` for each key; by position."""
        return [None if one is None else _tensor_of(one) for one in self.batch_get_buffer(keys)]

    def put_tensor_from(self, key: str, buffer_ptr: int, size: int) -> int:
        """Puts what ``get_tensor_into`` has left in memory; as ``put_from``."""
        return self.put_from(key, buffer_ptr, size)

    def get_tensor_into(self, key: str, buffer_ptr: int, size: int) -> Any:
        """Gets a tensor into memory, its header first.

        Args:
            key: its key.
            buffer_ptr, size: the memory, which must stay while the tensor is there.

        Returns:
            A tensor in that memory; None for a miss, for a block that is no tensor, and where the
            memory is too small.
        """
        length = self.get_into(key, buffer_ptr, size)
        return None if length < 0 else _tensor_of(piece(buffer_ptr, length))


def _on_host(tensor: Any) -> Any:
    torch = sys.modules.get("torch")  # if there is a tensor, torch is loaded
    if torch is None or not isinstance(tensor, torch.Tensor):
        raise Problem(BAD_ARGUMENT, f"tensor: a {type(tensor).__name__} given; allowed: a tensor")
    if _is_quantized(str(tensor.dtype).removeprefix("torch.")):
        given = f"{tensor.dtype} given; allowed: a dtype that is not quantized"
        raise Problem(BAD_ARGUMENT, f"tensor: {given}")
    return tensor.detach().cpu().contiguous()


def _bytes_of(tensor: Any) -> list[Any]:
    """The header, and the memory of a tensor that lives until the call ends."""
    name = str(tensor.dtype).removeprefix("torch.").encode()
    shape = struct.pack(f"<{tensor.dim()}q", *tensor.shape)
    head = _HEAD.pack(_MARK, tensor.dim(), name) + shape
    head += bytes(-len(head) % 64)
    return [head, piece(tensor.data_ptr(), tensor.nbytes)] if tensor.nbytes else [head]


def _tensor_of(data: Any) -> Any:
    """The tensor in a buffer; None if it has none."""
    import torch

    view = memoryview(data).cast("B")
    shape, name, begin = _read_head(view)
    dtype = _dtype_of(name)
    if dtype is None:
        log.error("mooncake.store: a block is no tensor")
        return None
    count = math.prod(shape)
    if min(shape, default=0) < 0 or len(view) != begin + count * dtype.itemsize:
        log.error("mooncake.store: a block is no tensor of its shape")
        return None
    try:
        if count == 0:
            return torch.empty(shape, dtype=dtype, device="cpu")
        return torch.frombuffer(data, dtype=dtype, offset=begin, count=count).reshape(shape)
    except RuntimeError as error:  # no shape that a tensor can have
        log.error("mooncake.store: a block is no tensor: %s", error)
        return None


def _dtype_of(name: str) -> Any:
    """The dtype of a name; None for others, and for quantized ones.

    The bytes of a quantized tensor say nothing without its scale, and torch ends the process where
    it is to view memory as one. Attributes that torch makes when it is asked for them are left
    alone: a block would have this process import modules.
    """
    import torch

    dtype = vars(torch).get(name)
    return dtype if isinstance(dtype, torch.dtype) and not _is_quantized(name) else None


def _is_quantized(name: str) -> bool:
    return name.startswith(("qint", "quint"))


def _read_head(view: memoryview) -> tuple[tuple[int, ...], str, int]:
    """Shape, dtype and where the bytes begin; no dtype: it is no header."""
    if len(view) < _HEAD.size:
        return (), "", 0
    mark, num, name = _HEAD.unpack_from(view)
    end = _HEAD.size + 8 * num
    if mark != _MARK or num > _MAX_DIMENSIONS or len(view) < end:
        return (), "", 0
    shape = struct.unpack_from(f"<{num}q", view, _HEAD.size)
    return shape, name.rstrip(b"\0").decode("ascii", "replace"), end + -end % 64
