"""Ports for servers that cannot choose one themselves."""

from __future__ import annotations

import socket


def free() -> int:
    """A port of loopback that nothing listens at now."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])
