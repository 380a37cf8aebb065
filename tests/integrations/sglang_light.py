"""SGLang's dispatchers without the rest of SGLang, which needs a GPU and many packages.

The token dispatchers, the elastic state, the loading of plug-ins and everything that these import
come unchanged from the real wheel. Packages that only collect imports are left empty. Modules about
kernels, models and metrics are replaced by placeholders.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# Their __init__ is not run; their modules are the real ones.
_EMPTY = (
    "sglang",
    "sglang.kernels",
    "sglang.srt.configs",
    "sglang.srt.layers.moe",
    "sglang.srt.layers.moe.token_dispatcher",
)
_REAL = ("sglang.kernels.kernel_api_logging",)
_PLACEHOLDERS = (
    "sglang.kernels",
    "sglang.srt.layers.moe.topk",
    "sglang.srt.model_executor.forward_batch_info",
    "sglang.srt.observability.metrics_collector",
)


class _Placeholder(ModuleType):
    """Has every name: a class of that name, which does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (), {"__init__": lambda *_, **__: None})
        setattr(self, name, value)
        return value


class _Finder(MetaPathFinder, Loader):
    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        covered = any(name == one or name.startswith(f"{one}.") for one in self.names)
        if not covered or name in _REAL:
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Placeholder(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def prepare(*placeholders: str) -> None:
    """Before anything of SGLang is imported in this process; more modules may be placeholders."""
    for name in _EMPTY:
        _leave_empty(name)
    sys.meta_path.insert(0, _Finder((*_PLACEHOLDERS, *placeholders)))


def _leave_empty(name: str) -> None:
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.submodule_search_locations is not None
    package = ModuleType(name)
    package.__path__ = list(spec.submodule_search_locations)
    package.__spec__ = spec
    sys.modules[name] = package
    parent, _, leaf = name.rpartition(".")
    if parent:
        setattr(importlib.import_module(parent), leaf, package)


def dispatcher(name: str) -> ModuleType:
    """``token_dispatcher/<name>.py`` of the installed wheel."""
    return importlib.import_module(f"sglang.srt.layers.moe.token_dispatcher.{name}")
