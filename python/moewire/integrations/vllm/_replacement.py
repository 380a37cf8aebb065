"""A name in vLLM that gets another value."""

from __future__ import annotations

from typing import Any, NamedTuple


class Replacement(NamedTuple):
    """``owner.name = value``; made when all replacements that belong together are possible."""

    owner: Any  # a module or class
    name: str
    value: Any

    def refuse_unknown(self) -> None:
        """Raises ``AttributeError`` if the name does not exist: not the vLLM that was tested."""
        if not hasattr(self.owner, self.name):
            where = getattr(self.owner, "__qualname__", self.owner.__name__)
            raise AttributeError(f"{where} has no {self.name}: another vLLM than was tested")

    def make(self) -> None:
        """Makes it. Idempotent: a value of Moewire is not wrapped again."""
        owned = getattr(getattr(self.owner, self.name), "__module__", None) or ""
        if not owned.startswith("moewire."):
            setattr(self.owner, self.name, self.value)
