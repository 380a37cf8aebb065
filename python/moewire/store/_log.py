"""Warnings of a client, through ``logging``, under the name "moewire"."""

from __future__ import annotations

import ctypes
import logging
import time

from .. import _abi as abi
from .._native.lib import Library

_ROOM = 4096
_EVERY_S = 1.0


class Warnings:
    """Logs the warnings of one client, once each. Any thread may use it."""

    def __init__(self, lib: Library, client: abi.mw_store_t) -> None:
        self._lib = lib
        self._client = client
        self._next = 0.0

    def look(self, soon: bool = False) -> None:
        """Logs what is new, and never raises.

        Args:
            soon: ask the library now; else it is asked once in a second at most.
        """
        now = time.monotonic()
        if now < self._next and not soon:
            return
        self._next = now + _EVERY_S
        buffer, length = ctypes.create_string_buffer(_ROOM), ctypes.c_uint64()
        status = self._lib.store_warnings(self._client, buffer, _ROOM, length)
        if status == abi.MW_OK:
            for line in buffer.raw[: length.value].decode(errors="replace").splitlines():
                logging.getLogger("moewire").warning("%s", line)
