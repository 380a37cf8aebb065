"""The devices on which engines' tensors are taken.

These are lists here because a plug-in must know them before its engine forks: a process that has
loaded the library cannot fork and go on with it. A test compares them with what the library
reports.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

KINDS = ("cpu",)  # as torch's device types
# Buffers exist for them (docs/cuda.md), but inside engines they never ran on hardware.
NEVER_RUN = ("cuda",)
SWITCH = "MOEWIRE_UNTESTED_DEVICES"


def takes(kind: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether an engine's tensors on this type of device are taken, as the user has allowed."""
    return kind in KINDS or (kind in NEVER_RUN and environ.get(SWITCH) == "1")


def fix(kind: str) -> str:
    """What to do if they are not taken; "" if nothing can be done."""
    if kind not in NEVER_RUN:
        return ""
    return f" (fix: export {SWITCH}=1   (to try {kind}, on which it was never run))"
