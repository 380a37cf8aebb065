"""Moewire inside SGLang: its plug-in, found by entry point in the group ``sglang.srt.plugins``.

    MOEWIRE_SGLANG=1 python -m sglang.launch_server ... \\
        --moe-a2a-backend mooncake --deepep-mode low_latency

``docs/engines.md`` says what else ``MOEWIRE_SGLANG`` may be, which versions were tested, and
what was not run.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

from ..compat import deep_ep
from ..compat._alias import Alias
from . import _mooncake_store, _plugin
from ._engines import SGLANG

_MOONCAKE = Alias(
    "mooncake.mooncake_ep_buffer",
    "moewire.integrations._sglang_buffer",
    ("Buffer", "EventOverlap"),
)
_DEEPEP_DISPATCHER = "sglang.srt.layers.moe.token_dispatcher.deepep"


def activate() -> None:
    """The entry point: runs in each of SGLang's processes, before models load."""
    _mooncake_store.activate()
    _plugin.activate(SGLANG, _apply)


def _apply(parts: frozenset[str]) -> str:
    """Puts Moewire behind the backends in ``parts``; by default behind what lacks a library.

    SGLang names Mooncake EP and DeepEP only where it imports them, so Moewire replaces the
    imported modules. Mooncake's other modules, such as its transfer engine, stay as they are.
    """
    dispatcher = _imported_dispatcher()
    free = deep_ep.is_installed() or importlib.util.find_spec("deep_ep") is None
    wanted = {
        "mooncake": not parts or "mooncake" in parts,
        "deepep": "deepep" in parts or (not parts and free),
    }
    taken = _to_take() if wanted["deepep"] and dispatcher is not None else {}
    # Nothing was changed so far. The first change may still fail, and then it changes nothing: it
    # imports Mooncake's package, if there is one.
    if wanted["mooncake"]:
        _MOONCAKE.install()
    if wanted["deepep"]:
        deep_ep.install()
        _tell(dispatcher, taken)
    backends = [name for name in wanted if wanted[name]]
    return f"--moe-a2a-backend {' or '.join(backends)}, with --deepep-mode low_latency"


# What DeepEP's dispatcher takes from ``deep_ep`` at its import, and what it makes of that.
_TAKEN = ("Buffer", "Config")
_OUTCOME = {"use_deepep": True, "_deepep_import_error": None}


def _imported_dispatcher() -> ModuleType | None:
    """DeepEP's dispatcher, if it is imported already, as in schedulers. Changes nothing."""
    module = sys.modules.get(_DEEPEP_DISPATCHER)
    for name in _OUTCOME:
        if module is not None and not hasattr(module, name):
            raise AttributeError(f"{module.__name__} has no {name}: another SGLang than was tested")
    return module


def _to_take() -> dict[str, Any]:
    library = importlib.import_module("moewire.deep_ep")
    return {name: getattr(library, name) for name in _TAKEN}


def _tell(dispatcher: ModuleType | None, taken: dict[str, Any]) -> None:
    """Sets what the dispatcher's one look for ``deep_ep`` would have found."""
    if dispatcher is not None:
        vars(dispatcher).update(taken)
        vars(dispatcher).update(_OUTCOME)
        vars(dispatcher).setdefault("sglang_per_token_group_quant_fp8", _quantised)


def _quantised(*args: Any, **options: Any) -> Any:
    """What the normal mode sends first: the dispatcher imports it only where it finds DeepEP."""
    kernels = importlib.import_module("sglang.kernels.ops.quantization.fp8_kernel")
    return kernels.sglang_per_token_group_quant_fp8(*args, **options)
