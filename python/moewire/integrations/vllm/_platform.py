"""The only module that knows which of vLLM's platforms this is, and whether Moewire serves it.

Importing this imports neither vLLM nor torch.
"""

from __future__ import annotations

from typing import Literal

from ...errors import UnsupportedError
from .. import _devices

Kind = Literal["cpu", "cuda"]


def kind() -> Kind:
    """The platform; raises ``UnsupportedError`` with the reason if Moewire cannot serve it."""
    from vllm.platforms import current_platform

    found: Kind | None = "cpu" if current_platform.is_cpu() else None
    if current_platform.is_cuda():
        found = "cuda"
    if found is not None and _devices.takes(found):
        return found
    raise UnsupportedError(
        f"vLLM runs on {current_platform.device_name}, and this version of Moewire takes "
        f"tensors on {' and '.join(_devices.KINDS)} only{_devices.fix(found or '')}"
    )


def tensor_device() -> str:
    """Where vLLM's tensors lie, as torch names it."""
    from vllm.platforms import current_platform

    return str(current_platform.device_type)
