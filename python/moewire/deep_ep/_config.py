"""Tuning parameters of the normal mode, which clients make and hand back."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """Accepted for compatibility; nothing here uses GPU cores or chunks."""

    num_sms: int = 20
    num_max_nvl_chunked_send_tokens: int = 6
    num_max_nvl_chunked_recv_tokens: int = 256
    num_max_rdma_chunked_send_tokens: int = 6
    num_max_rdma_chunked_recv_tokens: int = 256

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes that the normal mode needs.

        Args:
            hidden_bytes, num_ranks: they make no difference.

        Returns:
            0, because there is no normal mode.
        """
        return 0

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes that the normal mode needs between hosts.

        Args:
            hidden_bytes, num_ranks: they make no difference.

        Returns:
            0, as ``get_nvl_buffer_size_hint``.
        """
        return 0
