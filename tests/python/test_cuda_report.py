"""What `moewire doctor` says of the CUDA driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from harness import emulator, required
from moewire import doctor
from moewire._cuda import report as _cuda_report
from moewire._native.lib import library
from moewire.errors import NoDeviceError

_NOWHERE = "/there/is/no/driver.so"


def test_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_cuda_report.DRIVER_VARIABLE, _NOWHERE)
    with pytest.raises(
        NoDeviceError, match=f"no CUDA device: library not found; tried: {_NOWHERE}"
    ):
        _cuda_report.survey(library())
    found = _cuda_report.report(library())
    assert not found["available"]
    assert found["reason"].startswith("no driver is installed") and _NOWHERE in found["reason"]
    assert found["fix"].startswith("nvidia-smi")
    (line,) = doctor._lines({"cuda_driver": found})
    assert line.startswith("cuda driver: not available: no driver is installed")
    assert "; fix: nvidia-smi" in line


def test_without_the_library() -> None:
    assert _cuda_report.report(None)["fix"] == "make lib"


def test_what_is_not_known_is_passed_on() -> None:
    assert _cuda_report._absent("no CUDA device: cuInit: CUDA_ERROR_999 (999): words") == {
        "available": False,
        "reason": "no CUDA device: cuInit: CUDA_ERROR_999 (999): words",
    }


# What the library reads of the environment it has read when it was loaded.
_REPORTED = """
import json
from moewire._cuda import report
from moewire._native.lib import library

print(json.dumps([report.survey(library()), report.report(library())]))
"""


def _run(code: str, **env: str) -> Any:
    """What a process prints that looks at the emulator."""
    whole = {**os.environ, _cuda_report.DRIVER_VARIABLE: str(emulator.driver()), **env}
    done = subprocess.run(
        [sys.executable, "-c", code], env=whole, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_devices_of_a_driver() -> None:
    path = emulator.driver()
    survey, report = _run(_REPORTED, MOEWIRE_CUDA_CODE="compile", MOEWIRE_NVRTC="/no/nvrtc.so")
    assert survey["nvrtc"] == "" and survey["devices"][0]["code"] == ""
    first, driver, compiler, device = doctor._lines({"cuda_driver": report})
    assert first == "cuda driver:"
    assert driver == f"  driver: {path}, CUDA 13.0"
    assert compiler.startswith(
        "  run time compiler: none (library not found; tried: /no/nvrtc.so ("
    )
    before, words, after = device.partition(
        "; runs nothing (no code for compute capability 9.0: NVRTC: library not found; tried: "
        "/no/nvrtc.so ("
    )
    assert before == (
        "  device 0: emulated device, 8192 MiB, compute capability 9.0, PCI 0000:00:00.0"
    )
    assert words and after.endswith(
        "; shares memory by descriptor; fabric handles: no (no fabric handle: the device has "
        "none); maps the memory of devices: none; lets RDMA devices into its memory: yes"
    )


@pytest.mark.parametrize(
    ("capability", "words"),
    [
        ("75", "runs nothing (compute capability 7.5 is too old: the kernels need 8.0 or later);"),
        ("80", "runs cubin sm_80, to be compiled by NVRTC "),
        ("87", "runs cubin sm_87, to be compiled by NVRTC "),
        ("90", "runs cubin sm_90, to be compiled by NVRTC "),
        ("199", "runs PTX compute_1"),
    ],
)
def test_code_of_a_device(capability: str, words: str) -> None:
    if not _cuda_report.compilers():
        required.lacking("toolkit", "no NVRTC in this environment's packages")
    survey, report = _run(
        _REPORTED,
        MOEWIRE_CUDA_CODE="compile",
        MOEWIRE_CUDA_CACHE="off",
        MOEWIRE_NVRTC="",
        EMULATOR_CAPABILITY=capability,
    )
    compiler, line = report["run_time_compiler"], report["device 0"]
    assert compiler == survey["nvrtc"]
    assert compiler.startswith("NVRTC ") and "libnvrtc.so" in compiler
    assert words in line
    if capability != "75":
        assert survey["devices"][0]["no_code"] == ""
        assert f"{compiler} (and not kept: the cache is off); shares" in line


_NO_CONTEXT = """
import ctypes, json, os
import moewire
from moewire import doctor

asked = ctypes.CDLL(os.environ["MOEWIRE_CUDA_DRIVER"])
asked.emulator_called.restype = ctypes.c_char_p
called = lambda: asked.emulator_called().decode().split()
moewire.Buffer.get_ep_buffer_size_hint(128, 7168, 8, 64)
before = called()
devices = [name for name in doctor.report()["cuda_driver"] if name.startswith("device")]
print(json.dumps({"before": before, "after": called(), "devices": devices}))
"""


def test_no_context_is_made_by_looking() -> None:
    """An import asks the driver nothing; a report asks it, and makes no context."""
    found = _run(_NO_CONTEXT)
    assert found["before"] == []
    assert found["devices"] == ["device 0"]
    assert "cuInit" in found["after"] and "cuDeviceGetName" in found["after"]
    made = [name for name in found["after"] if "Ctx" in name or "Mem" in name.removesuffix("_v2")]
    assert made == ["cuDeviceTotalMem_v2"]


def test_devices_without_native_atomics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_cuda_report.DRIVER_VARIABLE, str(emulator.driver()))
    monkeypatch.setenv("EMULATOR_DEVICES", "3")
    assert "of devices: 1, 2; lets" in _cuda_report.report(library())["device 0"]
    monkeypatch.setenv("EMULATOR_NO_ATOMICS", "0-2")
    found = _cuda_report.report(library())
    assert "of devices: 1, 2 (without native atomics: 2); lets" in found["device 0"]
    assert "of devices: 0, 2; lets" in found["device 1"]


def test_a_device_that_lets_nobody_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_cuda_report.DRIVER_VARIABLE, str(emulator.driver()))
    monkeypatch.setenv("EMULATOR_NO_DMABUF", "1")
    words = "lets RDMA devices into its memory: no (device 0: no dma-buf of device memory: "
    assert words in _cuda_report.report(library())["device 0"]


def test_fabric_handles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_cuda_report.DRIVER_VARIABLE, str(emulator.driver()))
    monkeypatch.setenv("EMULATOR_FABRIC", "1")
    monkeypatch.setenv("EMULATOR_DRIVER", "12020")
    words = "no (no fabric handle: the driver is of CUDA 12.2, and they came with 12.3); maps"
    assert f"fabric handles: {words}" in _cuda_report.report(library())["device 0"]
    monkeypatch.delenv("EMULATOR_DRIVER")
    (one,) = _cuda_report.survey(library())["devices"]
    assert not one["no_fabric"] or "no IMEX channel in /dev/" in one["no_fabric"]
    assert "; fabric handles: yes, unless the driver refuses them; " in _cuda_report._device(
        one | {"no_fabric": ""}
    )
