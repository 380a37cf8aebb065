"""Where a block lies, as ``batch_get_replica_desc`` tells it."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class ReplicaStatus(enum.Enum):
    """How far a copy is. A block that is there is COMPLETE."""

    UNDEFINED = 0
    INITIALIZED = 1
    PROCESSING = 2
    COMPLETE = 3
    REMOVED = 4
    FAILED = 5


@dataclass(frozen=True)
class ReplicaDescriptor:
    """The one copy of a block.

    Attributes:
        status: COMPLETE.
        on_disk: all servers of the store keep their blocks in files.
    """

    on_disk: bool
    status: ReplicaStatus = ReplicaStatus.COMPLETE

    def is_memory_replica(self) -> bool:
        """Whether it lies in a server's memory."""
        return not self.on_disk

    def is_disk_replica(self) -> bool:
        """Whether it lies in a server's files."""
        return self.on_disk

    def is_local_disk_replica(self) -> bool:
        """Never: servers do not say which client is near."""
        return False
