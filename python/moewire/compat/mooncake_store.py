"""Lets code that imports Mooncake's store use Moewire's block store, unchanged.

    import moewire.compat.mooncake_store
    moewire.compat.mooncake_store.install()

    from mooncake.store import MooncakeDistributedStore, ReplicateConfig   # Moewire's

``master_server_addr`` names a server of ``moewire store serve``; or ``MOEWIRE_STORE_SERVERS`` names
one or several. docs/store.md says what differs from Mooncake.

vLLM and SGLang do so themselves where ``MOEWIRE_MOONCAKE_STORE=1`` and Moewire is installed.

Only ``mooncake.store`` is replaced. If ``mooncake`` is installed, its other modules stay as they
are; if not, an empty package stands in for it.
"""

from __future__ import annotations

from ._alias import Alias

_ALIAS = Alias(
    "mooncake.store",
    "moewire.compat._mooncake_store",
    (
        "BufferHandle",
        "MooncakeDistributedStore",
        "MooncakeHostMemAllocator",
        "ObjectDataType",
        "ReplicaDescriptor",
        "ReplicaStatus",
        "ReplicateConfig",
        "SoftPinAction",
        "bind_to_numa_node",
    ),
)

install = _ALIAS.install
is_installed = _ALIAS.is_installed
