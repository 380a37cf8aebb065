"""What ``setup`` is given, and the client that is made of it."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, cast

from ...store import Namespace
from ._blocks import Blocks
from ._codes import BAD_ARGUMENT, Problem, log, warn_once

MASTER = "127.0.0.1:50051"
SEGMENT_BYTES = 16 << 20
BUFFER_BYTES = 1 << 30
# Mooncake's name, and the one that LMCache passes on.
_MASTER_NAMES = ("master_server_addr", "master_server_address")
_UNITS = " KMGT"
_PORTS = range(12300, 14301)


class Settings(NamedTuple):
    """How a store is set up.

    Attributes:
        hostname: of this client, with or without a port. It is only told back.
        master: "host:port" of a server.
        segment: bytes that this client would give; they are not allocated.
        buffer: bytes for calls that copy, and the most of sessions; not allocated. 0: those fail.
        tenant: part of the namespace.
    """

    hostname: str
    master: str = MASTER
    segment: int = SEGMENT_BYTES
    buffer: int = BUFFER_BYTES
    tenant: str = "default"


def settings_of(config: Mapping[str, Any]) -> Settings:
    """The settings in a dictionary, whose values may be texts.

    Raises:
        Problem: one is missing or wrong.
    """
    for name in ("local_hostname", "metadata_server"):
        if not config.get(name):
            raise Problem(BAD_ARGUMENT, f"{name}: nothing given; allowed: a name")
    if str(config.get("enable_ssd_offload", "")).lower() in ("1", "true"):
        warn_once("enable_ssd_offload: servers keep blocks in files with --storage file")
    return Settings(
        str(config["local_hostname"]),
        str(next((config[name] for name in _MASTER_NAMES if config.get(name)), MASTER)),
        _size("global_segment_size", config, SEGMENT_BYTES),
        _size("local_buffer_size", config, BUFFER_BYTES),
        str(config.get("tenant_id", "default")),
    )


def _size(name: str, config: Mapping[str, Any], default: int) -> int:
    given = str(config.get(name, default)).strip()
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)B?", given.upper())
    if match is None:
        raise Problem(BAD_ARGUMENT, f"{name}: {given!r} given; allowed: bytes, or as in 16MB")
    return int(float(match[1]) * 1024 ** max(0, _UNITS.find(match[2] or " ")))


def hostname_of(settings: Settings) -> str:
    """With a port, as callers expect one; nothing listens there."""
    if re.search(r":\d+$", settings.hostname):
        return settings.hostname
    return f"{settings.hostname}:{secrets.choice(_PORTS)}"


def connect(settings: Settings) -> Blocks:
    """Makes the client, of the settings and of variables.

    Raises:
        Problem, MoewireError: an address, a variable or the key is wrong.
    """
    servers = os.environ.get("MOEWIRE_STORE_SERVERS") or settings.master
    if "://" in servers:
        allowed = "host:port, several with commas; or MOEWIRE_STORE_SERVERS"
        raise Problem(BAD_ARGUMENT, f"master_server_addr: {servers!r} given; allowed: {allowed}")
    protection = os.environ.get("MOEWIRE_STORE_PROTECTION") or "digest"
    blocks = Blocks(
        servers,
        namespace=Namespace(
            model=os.environ.get("MOEWIRE_STORE_NAMESPACE") or "mooncake",
            layout="mooncake.store",
            salt=settings.tenant,
        ),
        timeout_us=_timeout(),
        protection=cast(Literal["digest", "encrypt"], protection),
    )
    if blocks.stats()["servers_up"] == 0:
        log.warning(
            "mooncake.store: no server answers at %s; all is a miss until one does", servers
        )
    return blocks


def _timeout() -> int:
    text = os.environ.get("MOEWIRE_STORE_TIMEOUT_US") or "250000"
    if not text.isascii() or not text.isdigit():
        raise Problem(BAD_ARGUMENT, f"MOEWIRE_STORE_TIMEOUT_US: {text!r} given; allowed: a number")
    return int(text)
