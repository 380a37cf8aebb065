"""What ``mooncake.store`` has, on the block store."""

from __future__ import annotations

from ._config import ObjectDataType, ReplicateConfig, SoftPinAction
from ._memory import BufferHandle, MooncakeHostMemAllocator, bind_to_numa_node
from ._replicas import ReplicaDescriptor, ReplicaStatus
from ._store import MooncakeDistributedStore

__all__ = [
    "BufferHandle",
    "MooncakeDistributedStore",
    "MooncakeHostMemAllocator",
    "ObjectDataType",
    "ReplicaDescriptor",
    "ReplicaStatus",
    "ReplicateConfig",
    "SoftPinAction",
    "bind_to_numa_node",
]
