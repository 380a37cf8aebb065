"""What `moewire doctor` says of the CUDA driver."""

from __future__ import annotations

import pytest

from harness import emulator
from moewire import _cuda_report, doctor
from moewire._lib import library
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


def test_devices_of_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    path = emulator.driver()
    monkeypatch.setenv(_cuda_report.DRIVER_VARIABLE, str(path))
    assert doctor._lines({"cuda_driver": _cuda_report.report(library())}) == [
        "cuda driver:",
        f"  driver: {path}, CUDA 13.0",
        "  device 0: emulated device, 8192 MiB, compute capability 9.0, PCI 0000:00:00.0; shares "
        "memory by descriptor; fabric handles: no (no fabric handle: the device has none); maps "
        "the memory of devices: none; lets RDMA devices into its memory: yes",
    ]


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
