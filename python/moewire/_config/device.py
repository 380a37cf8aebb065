"""The device of a buffer, from names to fields of the C ABI."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import _abi as abi
from .._base.numbers import refuse
from .._cuda import report
from .._native.lib import library

if TYPE_CHECKING:
    import torch

_LAST_DEVICE = abi.LIMITS["device_ordinal"][1]
_ALLOWED = f"'cpu', 'cuda', 'cuda:N', N up to {_LAST_DEVICE}, or a torch.device of these"
# A file with code of the kernels, in place of the library's. For tests.
CODE_VARIABLE = "MOEWIRE_TEST_CUDA_CODE"


def native(given: str | torch.device | None) -> dict[str, int | bytes]:
    """Fields of ``mw_config_t``; None is the CPU."""
    kind, index = parsed("cpu" if given is None else given)
    if kind == "cpu":
        return {}
    library().refuse_fork()
    from .._cuda import torch_cuda  # torch is heavy, and most buffers need none of it

    return {
        "device": abi.MW_DEVICE_CUDA,
        "device_ordinal": torch_cuda.ordinal_of(index),
        "cuda_driver": report.driver_path(),
        "cuda_code": _code(),
        "cuda_nvrtc": report.compiler_places(),
    }


def fence_flags(given: str | None, device: str | torch.device | None) -> int:
    """Bits of ``flags`` for ``on_fence``; the variable applies to buffers on CUDA only."""
    name, value = "on_fence", given
    if value is None:
        name, value = "MOEWIRE_ON_FENCE", os.environ.get("MOEWIRE_ON_FENCE") or "wait"
    if value not in ("wait", "kill"):
        raise refuse(name, repr(value), "wait, kill")
    on_cuda = device is not None and parsed(device)[0] == "cuda"
    if value == "kill" and not on_cuda and given is not None:
        raise refuse(name, "'kill'", "wait, on the CPU, where no call waits for a rank that is out")
    return abi.MW_CONFIG_KILL_FENCED if value == "kill" and on_cuda else 0


def parsed(value: Any) -> tuple[str, int | None]:
    """The kind and number of a device; raises if there is no such kind."""
    kind, index = getattr(value, "type", None), getattr(value, "index", None)
    if isinstance(value, str):
        kind, colon, number = value.partition(":")
        if colon and not (number.isascii() and number.isdigit()):
            raise refuse("device", repr(value), _ALLOWED)
        if len(number.lstrip("0")) > len(str(_LAST_DEVICE)):  # beyond what int() takes
            raise refuse("device", repr(value), _ALLOWED)
        index = int(number) if colon else None
    if index is not None and index > _LAST_DEVICE:  # the library's number has 32 bits
        raise refuse("device", repr(value), _ALLOWED)
    if kind not in ("cpu", "cuda"):
        raise refuse("device", repr(value), _ALLOWED)
    return kind, index


def refuse_unsized(device: Any, name: str, num_bytes: int, hint: str) -> None:
    """Refuses a size of 0 on CUDA, where all memory is allocated at construction."""
    if not num_bytes and parsed(device)[0] == "cuda":
        raise refuse(name, "0", f"on CUDA what {hint} gives{_if_there_is_none()}")


def _if_there_is_none() -> str:
    """Why there is no device to size a buffer for, in parentheses; "" where there is one."""
    found = report.report(library())
    if found.get("available", True):
        return ""
    return f" (and there is no CUDA device here: {found['reason']})"


def _code() -> bytes:
    path = os.environ.get(CODE_VARIABLE)
    return Path(path).read_bytes() if path else b""
