"""The block store: blocks of KV caches that outlive the engine, under keys of a namespace.

``moewire store serve`` runs a server. Engines have a ``Client``:

    with Client("127.0.0.1:9900", namespace="my-model", key_file="moewire.keys") as store:
        store.put("block 1", data)
        store.get("block 1")

A miss is no error, and neither is a server that is dead, hung or full: its share of the keys is a
miss at once, after one timeout, until it is back. ``capi/include/moewire_store.h`` has the whole
contract.
"""

from ._client import Client
from ._lease import Lease
from ._parts import Completion, Namespace
from ._server import Server

__all__ = ["Client", "Completion", "Lease", "Namespace", "Server"]
