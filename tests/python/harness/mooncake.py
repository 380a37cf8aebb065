"""A client with the methods of Mooncake's store, and memory for it."""

from __future__ import annotations

import ctypes
from typing import Any

from moewire.compat import _mooncake_store as store

FULL, BAD_KEY, BAD, REFUSED, MISSING, NO_SERVER = -200, -400, -600, -601, -704, -900

Store = store.MooncakeDistributedStore


def opened(address: str, **options: Any) -> Store:
    """A store that is set up with a server."""
    one = Store()
    given = {"local_hostname": "here", "metadata_server": "P2PHANDSHAKE"}
    assert one.setup({**given, "master_server_addr": address, **options}) == 0
    return one


class Room:
    """Memory that is named by address."""

    def __init__(self, data: bytes | int) -> None:
        self.size = data if isinstance(data, int) else len(data)
        self.buffer = ctypes.create_string_buffer(data, self.size)
        self.ptr = ctypes.addressof(self.buffer)

    def bytes(self) -> bytes:
        return self.buffer.raw


def config(**fields: Any) -> store.ReplicateConfig:
    one = store.ReplicateConfig()
    for name, value in fields.items():
        setattr(one, name, value)
    return one
