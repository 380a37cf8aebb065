"""What vLLM's communicator holds while layers exchange rows expert by expert.

Written against vLLM 0.32.0's ``DeepEPLLAll2AllManager``, which it replaces on CUDA. Never run
there.
"""

from __future__ import annotations

from typing import Any

from vllm.config import get_current_vllm_config
from vllm.distributed.device_communicators.base_device_communicator import All2AllManagerBase

from ...errors import InvalidArgument
from .. import _buffers
from . import _place, _sizes


class BatchedAll2AllManager(All2AllManagerBase):  # type: ignore[misc]
    """One per process; the exchange itself is each layer's ``BatchedPrepareAndFinalize``."""

    def __init__(self, cpu_group: Any, tcp_store_group: Any = None) -> None:
        super().__init__(cpu_group, tcp_store_group)
        _sizes.refuse_config(get_current_vllm_config())

    def get_handle(self, kwargs: Any) -> Any:
        """Refuses: a caller would build DeepEP's exchange on the handle."""
        raise InvalidArgument(
            "get_handle: asked for DeepEP's buffer; MOEWIRE_VLLM=batched has none, and takes "
            "the layers of vLLM's own kernels only"
        )

    def max_sms_used(self) -> int:
        """0: nothing is set aside for the exchange in dual-batch overlap."""
        return 0

    def destroy(self) -> None:
        """Closes the Buffers of its group. Idempotent."""
        _buffers.close_buffers(_place.of(self.cpu_group))
