"""What a dispatch does if its slot has an operation that is held.

An operation is held if its handle was neither combined nor released, and is not garbage: its rows
may still be read, and its combine is still to come.
"""

from __future__ import annotations

import gc
import logging

from .. import _abi as abi
from ..errors import BusyError

_log = logging.getLogger("moewire")


class HeldRule:
    """Refuses such a dispatch. For upstream's names, it overwrites the rows, as upstream does."""

    __slots__ = ("_overwrites", "flag")

    _warned = False  # of this process

    def __init__(self, overwrites: bool) -> None:
        self._overwrites = overwrites
        # A flag of every dispatch: MW_DISPATCH_KEEP_HELD, or 0 after rows were overwritten
        # for the first time.
        self.flag = abi.MW_DISPATCH_KEEP_HELD

    def make_room(self, args: abi.mw_dispatch_args_t, refusal: BusyError) -> None:
        """Prepares the second try of a dispatch with ``args`` that was refused.

        A handle that only a cycle of objects keeps is garbage. It is collected before a dispatch is
        refused for good; otherwise ranks would differ in when that happens.
        """
        if not self._overwrites:
            gc.collect()
            return
        self._overwrite(refusal)
        args.flags &= ~abi.MW_DISPATCH_KEEP_HELD

    def _overwrite(self, refusal: BusyError) -> None:
        """Allows the dispatch that was refused, and all later ones."""
        self.flag = 0
        if not HeldRule._warned:
            HeldRule._warned = True
            _log.warning(
                "a dispatch overwrites rows whose handle is still held, as upstream's would "
                "(said once): %s",
                refusal,
            )
