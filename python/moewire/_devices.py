"""On which devices engines' tensors are taken.

Written down here, and not asked of the library, because a plug-in must know before its
engine forks: a process that loaded the library cannot fork and go on with it. A test holds
this to what the library reports.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

KINDS = ("cpu",)  # as torch's device types
# Buffers are there for them (docs/cuda.md), but nobody has seen one on hardware.
NEVER_RUN = ("cuda",)
SWITCH = "MOEWIRE_UNTESTED_DEVICES"


def takes(kind: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether an engine's tensors of this type of device are taken, as far as it was asked for."""
    return kind in KINDS or (kind in NEVER_RUN and environ.get(SWITCH) == "1")


def fix(kind: str) -> str:
    """What to do where they are not; "" if nothing."""
    if kind not in NEVER_RUN:
        return ""
    return f" (fix: export {SWITCH}=1   (to try {kind}, on which it was never run))"
