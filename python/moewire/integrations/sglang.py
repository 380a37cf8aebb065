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

from ..compat import deep_ep
from ..compat._alias import Alias
from . import _plugin
from ._engines import SGLANG

_MOONCAKE = Alias(
    "mooncake.mooncake_ep_buffer",
    "moewire.integrations._sglang_buffer",
    ("Buffer", "EventOverlap"),
)
_DEEPEP_DISPATCHER = "sglang.srt.layers.moe.token_dispatcher.deepep"


def activate() -> None:
    """The entry point: runs in each of SGLang's processes, before models load."""
    _plugin.activate(SGLANG, _apply)


def _apply(parts: frozenset[str]) -> str:
    """Puts Moewire behind the backends in ``parts``; by default behind what lacks a library.

    SGLang names Mooncake EP and DeepEP only where it imports them, so that is where Moewire
    steps in. Mooncake's other modules, its transfer engine among them, stay what they are.
    """
    backends = []
    if not parts or "mooncake" in parts:
        _MOONCAKE.install()
        backends.append("mooncake")
    if "deepep" in parts or (not parts and importlib.util.find_spec("deep_ep") is None):
        deep_ep.install()
        _tell_dispatcher(sys.modules.get(_DEEPEP_DISPATCHER))
        backends.append("deepep")
    return f"--moe-a2a-backend {' or '.join(backends)}, with --deepep-mode low_latency"


def _tell_dispatcher(module: ModuleType | None) -> None:
    """It took its names from ``deep_ep`` when it was imported, in schedulers before plug-ins."""
    if module is None:
        return
    library = importlib.import_module("deep_ep")
    # Set, whether or not it had them: another library's are replaced as well.
    for name in ("Buffer", "Config"):
        setattr(module, name, getattr(library, name))
    missing = [name for name in ("use_deepep", "_deepep_import_error") if name not in vars(module)]
    if missing:
        raise AttributeError(f"{module.__name__} has no {missing[0]}")
    vars(module).update(use_deepep=True, _deepep_import_error=None)
