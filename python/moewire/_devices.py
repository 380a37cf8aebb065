"""On which devices this version takes tensors.

Written down here, and not asked of the library, because a plug-in must know before its
engine forks: a process that loaded the library cannot fork and go on with it. A test holds
this to what the library reports.
"""

from __future__ import annotations

KINDS = ("cpu",)  # as torch's device types


def takes(kind: str) -> bool:
    """Whether tensors of this type of device can be given to a Buffer."""
    return kind in KINDS
