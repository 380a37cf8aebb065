"""``MooncakeDistributedStore`` on the block store."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ... import _abi as abi
from ._base import named
from ._codes import BAD_ARGUMENT, MISSING, OK, Problem, log
from ._replicas import ReplicaDescriptor
from ._sessions import SessionCalls
from ._setup import BUFFER_BYTES, MASTER, SEGMENT_BYTES, settings_of
from ._tensors import TensorCalls


class MooncakeDistributedStore(SessionCalls, TensorCalls):
    """A client of the block store with the methods of Mooncake's class.

    Safe for use by several threads, and not in a forked child. Errors are codes and a line of
    the logger ``moewire``; arguments of a wrong type raise ``TypeError``. A server that is dead,
    hung or full makes misses.
    """

    def setup(
        self,
        local_hostname: str | Mapping[str, Any] = "",
        metadata_server: str = "",
        global_segment_size: int = SEGMENT_BYTES,
        local_buffer_size: int = BUFFER_BYTES,
        protocol: str = "tcp",
        rdma_devices: str = "",
        master_server_addr: str = MASTER,
        engine: object = None,
        enable_ssd_offload: bool = False,
        ssd_offload_path: str = "",
        tenant_id: str = "default",
        enable_client_http_server: bool = False,
        client_http_port: int = 9300,
        *,
        config: Mapping[str, Any] | None = None,
    ) -> int:
        """Connects. A server that cannot be reached is only a warning.

        Args:
            local_hostname: of this client; or a dictionary with these arguments, whose sizes may
                be texts such as "16MB".
            global_segment_size, local_buffer_size: bytes; nothing is allocated. With a
                ``local_buffer_size`` of 0 only calls with addresses work; it bounds the blocks of
                sessions.
            master_server_addr: "host:port" of a server; ``MOEWIRE_STORE_SERVERS`` replaces it.
            tenant_id: part of the namespace; ``MOEWIRE_STORE_NAMESPACE`` is another.
            metadata_server, protocol, rdma_devices, engine, enable_ssd_offload, ssd_offload_path,
                enable_client_http_server, client_http_port: without effect.
            config: the dictionary.

        Returns:
            0, −600 for wrong arguments or no key file, −601 if a server refuses this client.
        """
        given = {name: value for name, value in locals().items() if name not in ("self", "config")}
        if isinstance(local_hostname, Mapping):
            config = local_hostname
        elif config is None:
            given["metadata_server"] = metadata_server or "none"
            config = given
        chosen = config
        return self._run("setup", lambda: self._open(settings_of(chosen)), int)

    def setup_dummy(self, mem_pool_size: int, local_buffer_size: int, server_address: str) -> int:
        """As ``setup``, for callers that have a client process of Mooncake's beside them.

        Args:
            mem_pool_size, local_buffer_size: as the sizes of ``setup``.
            server_address: as ``master_server_addr``.

        Returns:
            As ``setup``.
        """
        given = {"local_hostname": "localhost", "metadata_server": "none"}
        sizes = {"global_segment_size": mem_pool_size, "local_buffer_size": local_buffer_size}
        said = {**given, **sizes, "master_server_addr": server_address}
        return self._run("setup_dummy", lambda: self._open(settings_of(said)), int)

    def close(self) -> int:
        """Ends the connections. The blocks stay at the servers. Idempotent.

        Returns:
            0.
        """
        with self._lock:
            self._shut()
        return OK

    def health_check(self) -> int:
        """Says whether the store can be used.

        Returns:
            0: a server answers; 1: not set up; 2: no server answers.
        """

        def call() -> int:
            return OK if self._opened().stats()["servers_up"] else 2

        return 1 if self._blocks is None else self._run("health_check", call, lambda _: 2)

    def get_hostname(self) -> str:
        """The ``local_hostname``, with a port. Nothing listens there."""
        return self._hostname

    def moewire_stats(self) -> dict[str, Any]:
        """Counts; Mooncake has no such method.

        Returns:
            As ``moewire.store.Client.stats``; empty if the store is not set up. Conflicts are
            counted under "replies".
        """
        return self._run("moewire_stats", lambda: self._opened().stats(), lambda _: {})

    # ---------------------------------------------------------- what is there --

    def is_exist(self, key: str) -> int:
        """Says whether there is a block.

        Args:
            key: its key.

        Returns:
            1, 0, or −1 for an error.
        """
        return self.batch_is_exist([key])[0]

    def batch_is_exist(self, keys: Sequence[str]) -> list[int]:
        """Says which blocks there are.

        Args:
            keys: their keys.

        Returns:
            By position what ``is_exist`` returns.
        """

        def call() -> list[int]:
            blocks = self._opened()
            return self._for_each(
                "batch_is_exist",
                keys,
                lambda at: None,
                lambda some, _: [int(one) for one in blocks.each(some, blocks.exists)],
            )

        found = self._run("batch_is_exist", call, lambda code: [code] * len(keys))
        return [max(code, -1) for code in found]

    def get_size(self, key: str) -> int:
        """Says how long a block is.

        Args:
            key: its key.

        Returns:
            Bytes; −704 for a miss.
        """

        def call() -> int:
            (length,) = self._opened().lengths([named(key)])
            return MISSING if length < 0 else length

        return self._run("get_size", call, int)

    def get_replica_desc(self, key: str) -> list[ReplicaDescriptor]:
        """Says where a block lies; as ``batch_get_replica_desc``."""
        return self.batch_get_replica_desc([key]).get(key, [])

    def batch_get_replica_desc(self, keys: Sequence[str]) -> dict[str, list[ReplicaDescriptor]]:
        """Says where blocks lie.

        Args:
            keys: their keys.

        Returns:
            By key its one copy; blocks that are not there are left out.
        """

        def call() -> dict[str, list[ReplicaDescriptor]]:
            said = self._opened().stats()["servers"].values()
            kinds = {one.get("storage") for one in said if one is not None}
            copy = ReplicaDescriptor(on_disk=abi.MW_STORAGE_MEMORY not in kinds)
            there = self.batch_is_exist(keys)
            return {key: [copy] for key, one in zip(keys, there, strict=True) if one == 1}

        return self._run("batch_get_replica_desc", call, lambda _: {})

    # ----------------------------------------------------------------- remove --

    def remove(self, key: str, force: bool = False) -> int:
        """Removes a block. Readers that have begun read it to its end.

        Args:
            key: its key.
            force: without effect: a lease keeps a block readable, and keeps no key.

        Returns:
            0; −704: there was none.
        """
        return self.batch_remove([key], force)[0]

    def batch_remove(self, keys: Sequence[str], force: bool = False) -> list[int]:
        """Removes blocks.

        Args:
            keys: their keys.
            force: as for ``remove``.

        Returns:
            By position what ``remove`` returns.
        """

        def call() -> list[int]:
            blocks = self._opened()
            return self._for_each(
                "batch_remove",
                keys,
                lambda at: None,
                lambda some, _: [OK if one else MISSING for one in blocks.remove(some)],
            )

        return self._run("batch_remove", call, lambda code: [code] * len(keys))

    def remove_by_regex(self, regex_pattern: str, force: bool = False) -> int:
        """Removes the blocks of the namespace whose keys have a match.

        Args:
            regex_pattern: an expression of Python's, searched anywhere in the key.
            force: as for ``remove``.

        Returns:
            How many there were; −600 for a wrong expression.
        """

        def call() -> int:
            try:
                pattern = re.compile(regex_pattern.encode())
            except re.error as error:
                raise Problem(BAD_ARGUMENT, f"regex_pattern: {error}") from None
            return self._opened().remove_where(lambda key: pattern.search(key) is not None)

        return self._run("remove_by_regex", call, int)

    def remove_all(self, force: bool = False) -> int:
        """Removes all blocks of the namespace, and none of others.

        Args:
            force: as for ``remove``.

        Returns:
            How many there were.
        """
        return self._run("remove_all", lambda: self._opened().remove_where(lambda _: True), int)

    def __getattr__(self, name: str) -> NoReturn:
        text = f"moewire's MooncakeDistributedStore has no {name!r}"
        if not name.startswith("_"):
            log.debug("%s", text)
        raise AttributeError(text, name=name, obj=self)
