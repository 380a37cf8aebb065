"""What ``moewire doctor`` says of the CUDA driver and its devices, and why there are none."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
from ctypes import byref
from pathlib import Path
from typing import Any

from .. import _abi as abi
from .._native.lib import Library
from ..errors import MoewireError, NoDeviceError

Part = dict[str, Any]

# The driver's library, if it is not the machine's libcuda.so.1. For tests.
DRIVER_VARIABLE = "MOEWIRE_CUDA_DRIVER"

# Words of the library's reason, then the reason in plain words and what to do; the first fits.
_ABSENT: tuple[tuple[str, str, str], ...] = (
    (
        "library not found",
        "no driver is installed, or it is not shown to this container",
        "nvidia-smi   (shows the driver; without an NVIDIA GPU: none; in a container: docker run "
        "--gpus all)",
    ),
    ("too old", "the driver is too old", "install a driver of CUDA 12 or newer"),
    (
        "CUDA_ERROR_NO_DEVICE",
        "the driver finds no device",
        "nvidia-smi -L   (CUDA_VISIBLE_DEVICES may hide them; in a container: docker run "
        "--gpus all)",
    ),
)


def driver_path() -> bytes:
    """The driver's library; empty for the machine's."""
    return os.fsencode(os.environ.get(DRIVER_VARIABLE, ""))


def compilers() -> list[str]:
    """Folders of this environment's packages where NVRTC is, if it is there."""
    found = importlib.util.find_spec("nvidia")
    folders = () if found is None else found.submodule_search_locations or ()
    return sorted(
        str(library.parent)
        for folder in folders
        for library in Path(folder).glob("*/lib/libnvrtc.so*")
    )[:1]


def compiler_places() -> bytes:
    """The same, as the library takes it."""
    return os.fsencode(":".join(compilers()))


def survey(lib: Library) -> Part:
    """``mw_cuda_report``: driver, devices, their code. ``NoDeviceError`` without a driver."""
    texts = [driver_path(), compiler_places()]
    kept = [ctypes.create_string_buffer(text, max(1, len(text))) for text in texts]
    driver, nvrtc = (
        abi.mw_bytes_t(ctypes.addressof(one) if text else 0, len(text))
        for one, text in zip(kept, texts, strict=True)
    )
    length = ctypes.c_uint64()
    lib.check(lib.cuda_report(byref(driver), byref(nvrtc), None, 0, byref(length)))
    out = ctypes.create_string_buffer(length.value)
    lib.check(lib.cuda_report(byref(driver), byref(nvrtc), out, length.value, byref(length)))
    found: Part = json.loads(out.raw[: length.value])
    return found


def report(lib: Library | None) -> Part:
    """Lines of ``doctor``; ``available`` says whether there is a device."""
    if lib is None:
        return {"available": False, "reason": "the library cannot be used", "fix": "make lib"}
    try:
        found = survey(lib)
    except NoDeviceError as error:
        return _absent(str(error))
    except MoewireError as error:
        return {"available": False, "reason": str(error)}
    return {
        "driver": f"{found['driver']}, CUDA {found['cuda_version']}",
        "run_time_compiler": found["nvrtc"] or f"none ({found['no_nvrtc']})",
        **{f"device {one['ordinal']}": _device(one) for one in found["devices"]},
    }


def _absent(text: str) -> Part:
    for word, reason, fix in _ABSENT:
        if word in text:
            return {"available": False, "reason": f"{reason} ({text})", "fix": fix}
    return {"available": False, "reason": text}


def _device(one: Part) -> str:
    peers = ", ".join(str(peer) for peer in one["peers"]) or "none"
    if without := [str(peer) for peer in one["peers"] if peer not in one["atomics_with"]]:
        peers += f" (without native atomics: {', '.join(without)})"
    fabric = (
        f"no ({one['no_fabric']})" if one["no_fabric"] else "yes, unless the driver refuses them"
    )
    lets_in = f"no ({one['no_rdma']})" if one["no_rdma"] else "yes"
    return (
        f"{one['name']}, {one['memory_bytes'] >> 20} MiB, compute capability "
        f"{one['compute_capability']}, PCI {one['pci']}; runs {_code(one)}; shares memory by "
        f"{one['shares_memory_by']}; fabric handles: {fabric}; maps the memory of devices: "
        f"{peers}; lets RDMA devices into its memory: {lets_in}"
    )


def _code(one: Part) -> str:
    return one["code"] or f"nothing ({one['no_code']})"
