"""The transport layer by itself: connections, memory that peers reach, and transfers.

For programs that move their own bytes between processes or hosts, without experts. Peers
are numbers. They find each other by *handshakes*, bytes that the caller carries by any means that
it has: what ``next_handshake()`` gives for a peer goes to that peer's ``deliver()``. Everything
else between peers is authenticated with keys that all peers have.

    with Fabric(listen="10.0.0.1:0", key_file="/etc/moewire.keys") as fabric:
        ...                                   # a thread carries handshakes
        fabric.connect(peer, timeout_us=10_000_000)
        with fabric.register(tensor) as region:
            transfer = fabric.write(peer, region, remote)
            transfer.wait(1_000_000)

All classes are safe for use by several threads; none works in a forked child. Times are in
microseconds, sizes and offsets in bytes; a timeout of -1 means no limit. Signals interrupt waits.
``docs/abi.md`` and ``capi/include/moewire_fabric.h`` have the whole contract.
"""

from __future__ import annotations

import ctypes
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from .. import _abi as abi
from .._base.numbers import integer, refuse
from .._config.reach import ZERO_COPIES, rdma_text
from .._native import names as _names
from .._native.lib import fill, library
from ..errors import DeadlineError, MoewireError, WouldBlockError
from ._config import CARRIERS, EVICTIONS, config_of, flags_of, one_of
from ._memory import memory_of
from ._parts import (
    IN_PROGRESS,
    KEY_SOURCES,
    MAX_63,
    Region,
    Remote,
    Result,
    Text,
    Transfer,
    address_text,
    key_source,
    slices,
)
from ._transfers import Transfers, peer_number

__all__ = ["Fabric", "Region", "Remote", "Result", "Transfer"]

_leaked_regions: list[set[Region]] = []


class Fabric(Transfers):
    """One carrier (TCP sockets, or RDMA devices) and its peers. A context manager that closes it.

    Args:
        carrier: "tcp", or "rdma". RDMA does not use ``listen``, ``interface``, ``advertise``,
            ``num_sockets`` and ``encrypt``: what RDMA devices carry is not protected. With RDMA a
            ``Region``'s ``remote`` is valid only for the device that the connections use.
        rdma_devices, rdma_gid, rdma_near, rdma_dc: which RDMA devices, and how, as for ``Buffer``.
        listen: ``"address:port"``, several with commas; port 0 lets the system choose. With
            "tcp", this or ``interface`` is needed.
        interface: adds the addresses of a network interface.
        advertise: the address that peers are told, if it is not the one in ``listen``.
        keys: the text of the keys: one per line, an id and 64 hexadecimal digits, the current
            one first. Or one of:
        key_file: a path; only its owner may be able to read the file. ``keys_file`` is the old
            name of this argument.
        keys_variable: an environment variable's name.
        messages: True: receives have memory (``send``, ``recv``). False: they are for numbers
            (``write_imm``, ``receive_imm``). The same for all peers.
        tcp_zero_copy: as for ``Buffer``.
        eviction: the connection that makes room for another one at ``num_connections``: "sieve",
            one that was not used lately, or "fifo", the oldest.
        encrypt: bytes are encrypted, not only authenticated. The same for all peers.
        num_peers, num_connections, num_transfers, num_regions, send_depth, recv_depth,
            num_unmatched, num_sockets, slice_bytes: bounds; 0: the default of
            ``mw_fabric_config_t``.
        connect_timeout_us: how long it may take to make a connection; 0: 10 seconds.

    Raises:
        InvalidArgument: an argument or a key is wrong; the text never contains a key.
        SystemCallError: the carrier could not be opened.
    """

    def __init__(
        self,
        *,
        carrier: Literal["tcp", "rdma"] = "tcp",
        listen: str = "",
        interface: str = "",
        advertise: str = "",
        keys: bytes | str | None = None,
        key_file: str | os.PathLike[str] | None = None,
        keys_variable: str | None = None,
        messages: bool = False,
        encrypt: bool = False,
        num_peers: int = 0,
        num_connections: int = 0,
        num_transfers: int = 0,
        num_regions: int = 0,
        send_depth: int = 0,
        recv_depth: int = 0,
        num_unmatched: int = 0,
        num_sockets: int = 0,
        slice_bytes: int = 0,
        connect_timeout_us: int = 0,
        rdma_devices: str = "",
        rdma_gid: str | int = "",
        rdma_near: str = "",
        rdma_dc: bool = False,
        tcp_zero_copy: Literal["auto", "on", "off"] = "auto",
        eviction: Literal["sieve", "fifo"] = "sieve",
        keys_file: str | os.PathLike[str] | None = None,
    ) -> None:
        self._closed = True  # until it is open
        one_of("carrier", carrier, CARRIERS)
        one_of("tcp_zero_copy", tcp_zero_copy, ZERO_COPIES)
        one_of("eviction", eviction, EVICTIONS)
        source, key_text = key_source(keys, key_file, keys_variable, keys_file)
        flags = flags_of(messages, encrypt, rdma_dc)
        numbers = {
            "num_peers": num_peers,
            "num_connections": num_connections,
            "num_transfers": num_transfers,
            "num_regions": num_regions,
            "send_depth": send_depth,
            "recv_depth": recv_depth,
            "num_unmatched": num_unmatched,
            "num_sockets": num_sockets,
            "slice_bytes": slice_bytes,
            "connect_timeout_us": connect_timeout_us,
        }
        config = config_of(carrier, tcp_zero_copy, eviction, source, flags, numbers)
        given = {
            "keys": key_text,
            "listen": address_text("listen", listen),
            "interface_name": address_text("interface", interface),
            "advertise": address_text("advertise", advertise),
            "rdma_devices": rdma_text("rdma_devices", rdma_devices),
            "rdma_gid": rdma_text("rdma_gid", rdma_gid),
            "rdma_near": rdma_text("rdma_near", rdma_near),
        }
        names = {**_names.ARGUMENTS, "keys": "keys_file" if keys_file else KEY_SOURCES[source]}
        self._open(config, given, names)

    def _open(
        self, config: abi.mw_fabric_config_t, given: Mapping[str, bytes], names: Mapping[str, str]
    ) -> None:
        """Opens the fabric; ``given`` are the configuration's texts, ``names`` those in errors."""
        texts = fill(config, given)  # alive during the call
        self._lib = library()
        self._lock = threading.RLock()
        self._regions: set[Region] = set()
        self._id = abi.mw_fabric_t()
        try:
            _names.check(self._lib, self._lib.fabric_create(config, self._id), names)
        finally:
            ctypes.memset(texts[0], 0, len(given["keys"]))  # the first text
        self._closed = False

    # ------------------------------------------------------------ connections --

    def next_handshake(self, timeout_us: int = -1) -> tuple[int, bytes] | None:
        """The next handshake that the caller has to carry.

        Args:
            timeout_us: how long to wait for one; -1: no limit.

        Returns:
            The peer that it is for, and its bytes; None: there was none within ``timeout_us``.

        Raises:
            ClosedError, UnknownHandleError: the fabric is being closed, or is closed.
        """
        peer, length = ctypes.c_uint64(), ctypes.c_uint64()
        buffer = ctypes.create_string_buffer(abi.MW_MAX_HANDSHAKE_BYTES)
        for part in slices(timeout_us):
            status = self._lib.fabric_next_handshake(
                self._id, part, peer, buffer, abi.MW_MAX_HANDSHAKE_BYTES, length
            )
            if self._check(status) != IN_PROGRESS:
                return peer.value, buffer.raw[: length.value]
        return None

    def deliver(self, peer: int, handshake: bytes) -> None:
        """Hands over a handshake that ``peer`` has sent. An old one changes nothing.

        Args:
            peer: the number of the peer that sent it.
            handshake: its bytes.

        Raises:
            InvalidArgument: no bytes, or more than a handshake may have.
            MetadataError: the bytes are not a handshake.
            PeerMismatchError: the peer's fabric has another mode.
        """
        if not isinstance(handshake, bytes | bytearray | memoryview):
            raise refuse("handshake", f"a {type(handshake).__name__}", "bytes")
        data = bytes(handshake)
        self._check(self._lib.fabric_deliver(self._id, peer_number(peer), data, len(data)))

    def connect(self, peer: int, timeout_us: int = 10_000_000) -> None:
        """Waits until there is a connection to a peer; handshakes must be carried meanwhile.

        Args:
            peer: the number of the peer.
            timeout_us: how long to wait; -1: no limit.

        Raises:
            DeadlineError: there is no connection after ``timeout_us``; it is still being made.
            WouldBlockError: it was not even begun, for lack of room: ``num_connections``
                connections or ``num_peers`` peers were in use.
            UnreachableError: the last attempt failed, a moment ago.
        """
        full: WouldBlockError | None = None
        for part in slices(timeout_us):
            try:
                status = self._lib.fabric_connect(self._id, peer_number(peer), part)
                if self._check(status) != IN_PROGRESS:
                    return
                full = None
            except WouldBlockError as error:
                full = error
                time.sleep(min(part, 1000) / 1e6)  # the call may not have waited
        if full is not None:
            raise full
        raise DeadlineError(f"no connection to peer {peer} within {timeout_us} us")

    def disconnect(self, peer: int) -> None:
        """Ends the connection to a peer, if there is one; the next transfer makes another.

        Args:
            peer: the number of the peer.
        """
        self._check(self._lib.fabric_disconnect(self._id, peer_number(peer)))

    @contextmanager
    def couriers(self, carry: Callable[[int, bytes], object]) -> Iterator[None]:
        """Carries handshakes in a thread while the context lasts.

        The caller still has to ``deliver`` the handshakes that peers send to this fabric. An
        exception of ``carry`` ends the thread, and no handshake is carried from there on.

        Args:
            carry: ``carry(peer, handshake)`` takes one handshake to its peer.
        """
        ends = threading.Event()

        def run() -> None:
            while not ends.is_set():
                try:
                    handshake = self.next_handshake(20_000)
                except MoewireError:
                    return  # closed
                if handshake is not None:
                    carry(*handshake)

        thread = threading.Thread(target=run, name="moewire-couriers", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ends.set()
            thread.join()

    def report(self) -> dict[str, Any]:
        """For diagnostics.

        Returns:
            Carrier, addresses, bounds and counts; later versions may add entries.
        """
        text = Text(lambda *to: self._lib.fabric_report(self._id, *to), self._check).text
        found: dict[str, Any] = json.loads(text)
        return found

    # ----------------------------------------------------------------- memory --

    def register(self, memory: Any, *, write: bool = True, read: bool = True) -> Region:
        """Makes memory usable in transfers, and for peers to ``write`` and ``read``.

        Args:
            memory: any writable, contiguous buffer (``bytearray``, ``mmap``, numpy array) or a
                contiguous CPU tensor of torch. Not copied; kept alive until the region is closed.
            write: whether peers may write to it.
            read: whether peers may read it.

        Returns:
            The region; close it when it is no longer used.

        Raises:
            InvalidArgument: the memory is not such a buffer or tensor, or is empty.
            NoResourceError: a limit is reached, for example of memory that may be locked.
        """
        held = memory_of(memory)
        access = (abi.MW_ACCESS_WRITE if write else 0) | (abi.MW_ACCESS_READ if read else 0)
        region_id = abi.mw_region_t()
        with self._lock:
            try:
                self._check(
                    self._lib.region_register(
                        self._id, held.address, held.num_bytes, access, region_id
                    )
                )
            except BaseException:
                held.release()
                raise
            region = Region(self, region_id, held)
            self._regions.add(region)
        return region

    # ---------------------------------------------------------------- closing --

    @property
    def closed(self) -> bool:
        """Whether the fabric is closed and all memory is the caller's again."""
        return self._closed

    def close(self, timeout_us: int = 10_000_000) -> None:
        """Ends all transfers with ``ClosedError`` and frees everything. Idempotent.

        Args:
            timeout_us: how long to wait for what is outstanding; -1: no limit.

        Raises:
            BusyError: something is still outstanding after ``timeout_us``. The memory is not free;
                call again.
        """
        if self._closed or self._lib.forked:
            return
        self._check(self._lib.fabric_close(self._id, integer("timeout_us", timeout_us, -1, MAX_63)))
        with self._lock:
            self._closed = True
            for region in self._regions:
                region._free()
            self._regions.clear()

    def __del__(self) -> None:
        if getattr(self, "_closed", True):
            return
        try:
            self.close(1_000_000)
        except MoewireError:
            _leaked_regions.append(self._regions)  # peers may write there: it must not be freed

    def __enter__(self) -> Fabric:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
