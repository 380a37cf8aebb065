"""Tells the store which blocks are in use, though vLLM has them: else it would forget them first.

The client's call waits for the store, so a thread makes it. It is only a hint: what comes faster
than the store takes it is dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from ._client import StoreClient
from ._requests import MAX_KEYS

_MOST = 8 * MAX_KEYS  # keys that wait
_END = 1.0  # seconds


class Touches:
    """One thread, from the first key on."""

    def __init__(self, client: StoreClient) -> None:
        self._client = client
        self._keys: dict[bytes, None] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    def add(self, keys: Iterable[bytes]) -> None:
        """Returns at once."""
        with self._changed:
            for key in keys:
                if len(self._keys) >= _MOST or self._closed:
                    break
                self._keys[key] = None
            if self._keys and self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="moewire-touches", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Waits a second at most for a call under way. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(_END)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._keys or self._closed)
                if self._closed:
                    return
                keys = list(self._keys)[:MAX_KEYS]
                for key in keys:
                    del self._keys[key]
            try:
                self._client.touch(keys)
            except Exception:  # a hint
                continue
