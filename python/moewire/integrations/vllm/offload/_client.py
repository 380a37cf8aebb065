"""What the tier needs of a store's client, and how it gets one."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from ....errors import InvalidArgument
from ....store import Client, Namespace
from ..._engines import STORE_SERVERS


class Completion(Protocol):
    """How a request ended. ``ok`` and ``lengths`` are in the order of its keys."""

    @property
    def id(self) -> int: ...
    @property
    def ok(self) -> list[bool]: ...
    @property
    def lengths(self) -> list[int]: ...
    @property
    def error(self) -> str | None: ...


class StoreClient(Protocol):
    """The methods of ``moewire.store.Client`` that the tier calls.

    ``submit_*`` and ``drain`` do not wait. Every request ends, by its own deadline at the latest.
    Its buffers are the client's until then, or until ``close`` has returned.
    """

    def register(self, buffer: memoryview) -> object: ...
    def submit_put(self, keys: Sequence[bytes], buffers: Sequence[memoryview]) -> int: ...
    def submit_get(self, keys: Sequence[bytes], buffers: Sequence[memoryview]) -> int: ...
    def submit_exists(self, keys: Sequence[bytes]) -> int: ...
    def event_fd(self) -> int: ...
    def drain(self) -> Sequence[Completion]: ...
    def touch(self, keys: Sequence[bytes]) -> object: ...
    def close(self) -> None: ...


class Settings(NamedTuple):
    """How to reach the store."""

    servers: list[str] | None
    key_file: str | None
    transport: str
    timeout_us: int
    protection: str
    client: str | None  # "module:callable", called as moewire.store.Client, in place of it


def check(settings: Settings) -> Callable[..., StoreClient]:
    """What makes a client.

    Raises:
        InvalidArgument: no server is named, or ``client`` names nothing.
    """
    if not settings.servers and not os.environ.get(STORE_SERVERS):
        raise InvalidArgument(
            'servers: none given; allowed: a list, as in "servers": ["127.0.0.1:9900"] in the '
            f"tier's configuration, or {STORE_SERVERS}"
        )
    return Client if settings.client is None else _named(settings.client)


def connect(settings: Settings, namespace: Namespace) -> StoreClient:
    """A client of the namespace. Raises as ``check`` does."""
    return check(settings)(
        settings.servers,
        namespace=namespace,
        key_file=settings.key_file,
        transport=settings.transport,
        timeout_us=settings.timeout_us,
        protection=settings.protection,
    )


def _named(text: str) -> Any:
    module, _, name = text.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidArgument(f"client: {text!r} given, which is not there ({error})") from error
