"""Modules under other libraries' names, made of Moewire's parts."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
import threading
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_log = logging.getLogger("moewire")
_lock = threading.Lock()


@dataclass(frozen=True)
class Alias:
    """One such module: its full name, and the module of Moewire that has its names."""

    name: str
    target: str
    names: tuple[str, ...]
    # Modules inside it.
    parts: tuple[Alias, ...] = ()

    def install(self) -> None:
        """Puts the module in place of the other library's, in this process. Idempotent.

        The first time, the logger ``moewire`` warns that the name is taken over, as a hint for a
        person that debugs the other library.
        """
        with _lock:
            if not self.is_installed():
                self._install()
                _log.warning("%s is now provided by moewire in this process", self.name)

    def is_installed(self) -> bool:
        """Whether ``install`` is in effect."""
        return isinstance(sys.modules.get(self.name), _Module)

    def _install(self) -> None:
        parent, _, leaf = self.name.rpartition(".")
        package = _package(parent) if parent else None
        module = _Module(self)
        sys.modules[self.name] = module
        if package is not None:
            setattr(package, leaf, module)
        for part in self.parts:
            part._install()


class _Module(ModuleType):
    """Resolves its names at first use, so that torch loads late."""

    def __init__(self, alias: Alias) -> None:
        super().__init__(alias.name, f"Provided by {alias.target}.")
        # importlib.util.find_spec, by which clients look for a module, wants one.
        self.__spec__ = ModuleSpec(alias.name, None, origin=alias.target)
        self.__dict__["__all__"] = list(alias.names)
        self.__dict__["_moewire_alias"] = alias

    def __getattr__(self, name: str) -> Any:
        alias: Alias = self.__dict__["_moewire_alias"]
        if name not in alias.names:
            raise AttributeError(f"module {alias.name!r} (moewire's) has no attribute {name!r}")
        value = getattr(importlib.import_module(alias.target), name)
        setattr(self, name, value)
        return value


def _package(name: str) -> ModuleType:
    """The real package if it is installed, else an empty one."""
    if name in sys.modules or importlib.util.find_spec(name) is not None:
        return importlib.import_module(name)
    package = ModuleType(name, f"Stands in for {name}, which is not installed.")
    package.__path__ = []
    package.__spec__ = ModuleSpec(name, None, origin="moewire", is_package=True)
    sys.modules[name] = package
    return package
