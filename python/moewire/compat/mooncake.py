"""Lets code that imports Mooncake EP use Moewire, unchanged.

    import moewire.compat.mooncake
    moewire.compat.mooncake.install()

    from mooncake.mooncake_ep_buffer import Buffer, EventOverlap   # Moewire's

Only the leaf module ``mooncake.mooncake_ep_buffer`` is replaced. Other modules of a really
installed ``mooncake`` stay what they are; without one, an empty package stands in for it.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
import threading
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

PACKAGE = "mooncake"
LEAF = "mooncake_ep_buffer"
NAMES = ("Buffer", "EventOverlap")

_log = logging.getLogger("moewire")
_lock = threading.Lock()


class _Alias(ModuleType):
    """The leaf module; its names are resolved at first use, so that torch loads late."""

    def __getattr__(self, name: str) -> Any:
        if name not in NAMES:
            raise AttributeError(f"module {self.__name__!r} (moewire's) has no attribute {name!r}")
        value = getattr(importlib.import_module("moewire"), name)
        setattr(self, name, value)
        return value


def install() -> None:
    """Makes ``mooncake.mooncake_ep_buffer`` Moewire's, in this process. Idempotent."""
    with _lock:
        if not is_installed():
            _install()
            _log.warning("%s.%s is now provided by moewire in this process", PACKAGE, LEAF)


def is_installed() -> bool:
    """Whether ``install()`` is in effect."""
    return isinstance(sys.modules.get(f"{PACKAGE}.{LEAF}"), _Alias)


def _install() -> None:
    package = _package()
    name = f"{PACKAGE}.{LEAF}"
    alias = _Alias(name, "Mooncake EP's Buffer and EventOverlap, provided by Moewire.")
    alias.__spec__ = ModuleSpec(name, None, origin="moewire.compat.mooncake")
    alias.__dict__["__all__"] = list(NAMES)
    sys.modules[name] = alias
    setattr(package, LEAF, alias)


def _package() -> ModuleType:
    """The real package if it is installed, else an empty one."""
    if PACKAGE in sys.modules or importlib.util.find_spec(PACKAGE) is not None:
        return importlib.import_module(PACKAGE)
    package = ModuleType(PACKAGE, "Stands in for Mooncake, which is not installed.")
    package.__path__ = []
    package.__spec__ = ModuleSpec(PACKAGE, None, origin="moewire.compat.mooncake", is_package=True)
    sys.modules[PACKAGE] = package
    return package
