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
from typing import Any, NamedTuple

from ..compat import deep_ep
from ..compat._alias import Alias
from . import _mooncake_store, _plugin
from ._engines import SGLANG, SGLANG_ON_CUDA

_MOONCAKE = Alias(
    "mooncake.mooncake_ep_buffer",
    "moewire.integrations._sglang_buffer",
    ("Buffer", "EventOverlap"),
)
_DISPATCHERS = "sglang.srt.layers.moe.token_dispatcher"
_QUANTISE = "sglang_per_token_group_quant_fp8"


class _Dispatcher(NamedTuple):
    """What one of DeepEP's dispatchers takes from ``deep_ep`` at its import, and makes of that."""

    module: str
    taken: tuple[str, ...]
    found: str
    error: str


_DEEPEP = (
    _Dispatcher(
        f"{_DISPATCHERS}.deepep", ("Buffer", "Config"), "use_deepep", "_deepep_import_error"
    ),
    _Dispatcher(
        f"{_DISPATCHERS}.deepep_v2",
        ("ElasticBuffer",),
        "use_deepep_v2",
        "_deepep_v2_import_error",
    ),
)


def activate() -> None:
    """The entry point: runs in each of SGLang's processes, before models load."""
    _mooncake_store.activate()
    _plugin.activate(SGLANG, _apply)


def _apply(parts: frozenset[str]) -> str:
    """Puts Moewire behind the backends in ``parts``; by default behind what lacks a library.

    SGLang names Mooncake EP and DeepEP only where it imports them, so Moewire replaces the
    imported modules. Mooncake's other modules, such as its transfer engine, stay as they are.
    """
    imported = _imported()
    free = deep_ep.is_installed() or importlib.util.find_spec("deep_ep") is None
    wanted = {
        "mooncake": not parts or "mooncake" in parts,
        "deepep": "deepep" in parts or (not parts and free),
    }
    replaced = _replacements(imported) if wanted["deepep"] else []
    # Nothing was changed so far. The first change may still fail, and then it changes nothing: it
    # imports Mooncake's package, if there is one.
    if wanted["mooncake"]:
        _MOONCAKE.install()
    if wanted["deepep"]:
        deep_ep.install()
        for module, values in replaced:
            vars(module).update(values)
    backends = [name for name in wanted if wanted[name]]
    if not wanted["deepep"]:
        return f"--moe-a2a-backend {' or '.join(backends)}"
    return f"--moe-a2a-backend {' or '.join([*backends, 'deepep_v2'])} ({SGLANG_ON_CUDA})"


def _imported() -> list[tuple[ModuleType, _Dispatcher]]:
    """DeepEP's dispatchers that are imported already, as in schedulers. Changes nothing."""
    found = []
    for one in _DEEPEP:
        module = sys.modules.get(one.module)
        if module is None:
            continue
        for name in (one.found, one.error):
            if not hasattr(module, name):
                raise AttributeError(
                    f"{module.__name__} has no {name}: another SGLang than was tested"
                )
        found.append((module, one))
    return found


def _replacements(
    imported: list[tuple[ModuleType, _Dispatcher]],
) -> list[tuple[ModuleType, dict[str, Any]]]:
    """What each dispatcher's one look for ``deep_ep`` would have found."""
    replaced = []
    for module, one in imported:
        library = importlib.import_module("moewire.deep_ep")
        values: dict[str, Any] = {name: getattr(library, name) for name in one.taken}
        values |= {one.found: True, one.error: None}
        if vars(module).get(_QUANTISE) is None:
            values[_QUANTISE] = _quantised
        replaced.append((module, values))
    return replaced


def _quantised(*args: Any, **options: Any) -> Any:
    """What prompts are sent as: a dispatcher imports it only where it finds DeepEP."""
    kernels = importlib.import_module("sglang.kernels.ops.quantization.fp8_kernel")
    return getattr(kernels, _QUANTISE)(*args, **options)
