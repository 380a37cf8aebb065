"""The switch on vLLM's command line, and the name of the tier for KV blocks."""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import moewire.integrations.vllm as plugin
from moewire.integrations.vllm import _command_line, offload

CASES = [
    (["vllm", "serve", "m"], None),
    (["vllm", "serve", "m", "--additional-config", '{"other": 1}'], None),
    (["vllm", "serve", "m", "--additional-config", '{"moewire": 1}'], "1"),
    (["vllm", "serve", "m", "--additional-config", '{"moewire": true}'], "1"),
    (["vllm", "serve", "m", '--additional-config={"moewire": "batched"}'], "batched"),
    (["vllm", "m", '--additional_config={"moewire": ["manager", "repairs"]}'], "manager,repairs"),
    (["vllm", "serve", "m", "--additional-config.moewire", "manager"], "manager"),
    (["vllm", "serve", "m", "--additional-config.moewire=false"], "0"),
    (["vllm", "serve", "m", "--additional-config.other=1"], None),
    (["vllm", "serve", "m", "--additional-config", "{not json"], None),
    (["vllm", "serve", "m", "--additional-config", "[1]"], None),
    (["vllm", "serve", "m", "--additional-config"], None),
    (["x", "--additional-config.moewire=1", "--additional-config.moewire=0"], "0"),
]  # fmt: skip


@pytest.mark.parametrize(("argv", "want"), CASES)
def test_wanted(argv: list[str], want: str | None) -> None:
    assert _command_line.wanted(argv) == want


def test_export() -> None:
    argv = ["vllm", "--additional-config.moewire=batched"]
    environ: dict[str, str] = {}
    _command_line.export(argv, environ, "MOEWIRE_VLLM")
    assert environ == {"MOEWIRE_VLLM": "batched"}
    environ = {"MOEWIRE_VLLM": "0"}
    _command_line.export(argv, environ, "MOEWIRE_VLLM")
    assert environ == {"MOEWIRE_VLLM": "0"}, "what the environment says counts"


@pytest.fixture
def tiers(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str]]:
    """What is registered with a stand-in for vLLM."""
    found: list[tuple[str, str, str]] = []
    factory = SimpleNamespace(register_tier=lambda *tier: found.append(tier))
    module = SimpleNamespace(SecondaryTierFactory=factory)
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace())
    monkeypatch.setitem(sys.modules, offload._FACTORY, module)
    monkeypatch.setattr(offload, "_registered", False)
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    return found


@pytest.mark.parametrize(("switch", "registered"), [(None, True), ("0", False)])
def test_the_tier_has_its_name_unless_the_plug_in_is_off(
    monkeypatch: pytest.MonkeyPatch, tiers: Any, switch: str | None, registered: bool
) -> None:
    monkeypatch.setattr(sys, "argv", ["vllm"])
    if switch is None:
        monkeypatch.delenv("MOEWIRE_VLLM", raising=False)
    else:
        monkeypatch.setenv("MOEWIRE_VLLM", switch)
    plugin.activate()
    plugin.activate()
    ours = ("moewire", "moewire.integrations.vllm.offload.tier", "MoewireTier")
    assert tiers == [ours] * registered


def test_a_name_that_is_taken_is_said(
    monkeypatch: pytest.MonkeyPatch, tiers: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def taken(*_: str) -> None:
        raise ValueError("already registered")

    factory = SimpleNamespace(register_tier=taken)
    monkeypatch.setattr(sys.modules[offload._FACTORY], "SecondaryTierFactory", factory)
    assert not offload.register() and "already registered" in caplog.text


def test_a_vllm_without_tiers_is_left_alone(monkeypatch: pytest.MonkeyPatch, tiers: Any) -> None:
    monkeypatch.setitem(sys.modules, offload._FACTORY, SimpleNamespace())
    assert not offload.register()
    monkeypatch.delitem(sys.modules, "vllm")
    assert not offload.register()


def test_the_spec_is_found_where_a_configuration_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM imports the module by its name and asks it for the class; without vLLM nothing is."""
    assert "MoewireCPUOffloadingSpec" in plugin.__all__
    spec = object()
    name = "moewire.integrations.vllm.offload.cpu"
    assert name not in sys.modules
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(MoewireCPUOffloadingSpec=spec))
    found = importlib.import_module("moewire.integrations.vllm")
    assert found.MoewireCPUOffloadingSpec is spec
    with pytest.raises(AttributeError, match="has no attribute 'MoewireGPUOffloadingSpec'"):
        found.MoewireGPUOffloadingSpec  # noqa: B018
