"""The switch on vLLM's command line."""

from __future__ import annotations

import pytest

from moewire.integrations.vllm import _command_line

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
