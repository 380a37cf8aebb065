"""The tier's entry in ``secondary_tiers``, checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from ....errors import InvalidArgument
from ....store._submit import PROTECTIONS, TRANSPORTS
from ._client import Settings


@dataclass(frozen=True)
class Options:
    """Attributes: docs/vllm.md has a table of them."""

    servers: list[str] | None = None
    key_file: str | None = None
    transport: str = "auto"
    timeout_us: int = 250_000
    protection: str = "digest"
    salt: str = ""
    model: str | None = None
    weights: str | None = None
    max_backlog_bytes: int = 256 << 20
    enable_kv_events: bool = False
    locality: str | None = None
    client: str | None = None

    @property
    def settings(self) -> Settings:
        """Those of the client."""
        servers, key_file = self.servers, self.key_file
        return Settings(
            servers, key_file, self.transport, self.timeout_us, self.protection, self.client
        )


def of_entry(entry: dict[str, Any]) -> Options:
    """Of the whole entry; as ``parsed``."""
    vllms = ("type", "module_path", "backpressure")
    return parsed({name: value for name, value in entry.items() if name not in vllms})


def parsed(given: dict[str, Any]) -> Options:
    """Checks names and values.

    Raises:
        InvalidArgument: the text names the option, its value and what is allowed.
    """
    known = [field.name for field in fields(Options)]
    for name, value in given.items():
        if name not in known:
            raise InvalidArgument(f"{name}: no option of the tier; allowed: {', '.join(known)}")
        right, allowed = _ALLOWED[name]
        if not right(value):
            raise InvalidArgument(f"{name}: {value!r} given; allowed: {allowed}")
    return Options(**given)


def _integer(least: int, most: int) -> tuple[Callable[[Any], bool], str]:
    def right(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most

    return right, f"an integer from {least} to {most}"


def _one_of(*values: Any) -> tuple[Callable[[Any], bool], str]:
    return lambda value: value in values, ", ".join(map(repr, values))


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _name_or_none(value: Any) -> bool:
    return value is None or (isinstance(value, str) and bool(value))


def _servers(value: Any) -> bool:
    if value is None:
        return True
    return isinstance(value, list) and bool(value) and all(map(_name_or_none, value))


def _callable_or_none(value: Any) -> bool:
    return value is None or (isinstance(value, str) and ":" in value)


_NAME = (_name_or_none, "a text that is not empty, or null")
_ALLOWED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "servers": (_servers, 'a list as ["127.0.0.1:9900"], or null'),
    "key_file": _NAME,
    "transport": _one_of(*TRANSPORTS),
    "protection": _one_of(*PROTECTIONS),
    "timeout_us": _integer(1_000, 60_000_000),
    "salt": (_text, "a text"),
    "model": _NAME,
    "weights": _NAME,
    "max_backlog_bytes": _integer(0, 1 << 50),
    "enable_kv_events": (lambda value: isinstance(value, bool), "true, false"),
    "locality": _one_of(None, "LOCAL", "REMOTE"),
    "client": (_callable_or_none, '"module:callable", or null'),
}
