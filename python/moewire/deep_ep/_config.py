"""Tuning parameters of the normal mode on GPUs, which clients make and hand back."""

from __future__ import annotations

from dataclasses import dataclass

from .._base import check


@dataclass(frozen=True)
class Config:
    """Accepted for compatibility; nothing here uses GPU cores or chunks.

    Raises:
        InvalidArgument: ``num_sms`` is below 0.
    """

    num_sms: int = 20
    num_max_nvl_chunked_send_tokens: int = 6
    num_max_nvl_chunked_recv_tokens: int = 256
    num_max_rdma_chunked_send_tokens: int = 6
    num_max_rdma_chunked_recv_tokens: int = 256

    def __post_init__(self) -> None:
        check.integer("num_sms", self.num_sms, 0, 1 << 16)

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes for ``num_nvl_bytes``.

        Args:
            hidden_bytes, num_ranks: they make no difference.

        Returns:
            0: rows of the normal mode go in rounds, in memory whose size the buffer chooses.
        """
        return 0

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes for ``num_rdma_bytes`` of a buffer for the normal mode alone.

        Args:
            hidden_bytes, num_ranks: they make no difference.

        Returns:
            0, as ``get_nvl_buffer_size_hint``.
        """
        return 0
