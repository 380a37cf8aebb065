"""What belongs to GPUs: cores, chunks, streams and memory. No result here depends on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .._base import check
from .._base.opaque import opaque_methods
from ..event import EventOverlap
from ._config import Config
from ._events import EventHandle

if TYPE_CHECKING:
    from .._base.place import Place
    from ..buffer import Buffer


@opaque_methods
class Gpu:
    """Answers clients that ask for GPU cores, chunks, streams and memory."""

    num_sms: int = 20
    _buffer: Buffer
    _place: Place

    @staticmethod
    def is_sm90_compiled() -> bool:
        """True: upstream, it says whether the normal mode takes fp8 and goes between hosts."""
        return True

    @classmethod
    def set_num_sms(cls, new_num_sms: int) -> None:
        """Sets ``Buffer.num_sms``, which nothing here reads.

        Args:
            new_num_sms: an even number.

        Raises:
            InvalidArgument: it is odd, or out of its bounds.
        """
        number = check.integer("new_num_sms", new_num_sms, 0, 1 << 16)
        if number % 2:
            raise check.refuse("new_num_sms", number, "an even number")
        cls.num_sms = number

    @classmethod
    def get_dispatch_config(cls, num_ranks: int) -> Config:
        """A ``Config``; accepted and not used.

        Args:
            num_ranks: R; it makes no difference.

        Returns:
            The same for any number of ranks.
        """
        return Config(cls.num_sms)

    get_combine_config = get_dispatch_config

    @staticmethod
    def capture() -> EventOverlap:
        """Marks the present end of torch's current CUDA stream. On a CPU all work is done.

        Returns:
            An event for all work up to there.
        """
        return EventOverlap(EventHandle())

    def get_comm_stream(self) -> Any:
        """The stream of operations with ``async_finish``.

        Returns:
            torch's object. On a CPU, the CPU's one stream: operations run in the calling thread.
        """
        return self._buffer.runtime.side_stream()

    def get_local_buffer_tensor(
        self,
        dtype: torch.dtype,
        size: torch.Size | None = None,
        offset: int = 0,
        use_rdma_buffer: bool = False,
    ) -> torch.Tensor:
        """Zeros, never the workspace itself.

        The workspace holds words that peers act on at any time; a client that zeroes "the
        buffer" while it recovers must not reach them, and need not.

        Args:
            dtype, size: of the tensor; None: no elements.
            offset, use_rdma_buffer: accepted and not used.

        Returns:
            A tensor of its own, where this buffer's tensors lie.
        """
        return self._empty(tuple(size) if size is not None else (0,), dtype).zero_()

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return self._place.empty(shape, dtype)
