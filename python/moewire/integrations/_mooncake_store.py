"""Mooncake's store on the block store, in all processes of an engine that loads plug-ins."""

from __future__ import annotations

from .._base.numbers import switch
from ..compat import mooncake_store


def activate() -> None:
    """Puts ``mooncake.store`` in place, if the user asked for it. Idempotent.

    Raises:
        InvalidArgument: the variable is neither 0 nor 1.
    """
    if switch("MOEWIRE_MOONCAKE_STORE"):
        mooncake_store.install()
