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

ENGINES = (SGLANG,)
