"""The transfers that a fabric begins. ``moewire.fabric`` has the contract."""

from __future__ import annotations

import time
from collections.abc import Callable

from .. import _abi as abi
from .._base.numbers import integer, refuse
from ..errors import ConnectingError, WouldBlockError
from ._calls import ARGS, spare_args, take_args
from ._parts import MAX_63, MAX_64, Opened, Region, Remote, Transfer


class Transfers(Opened):
    """The base of ``Fabric`` that begins transfers of bytes and numbers to and from a peer."""

    def write(
        self,
        peer: int,
        region: Region,
        remote: Remote,
        *,
        offset: int = 0,
        num_bytes: int | None = None,
        remote_offset: int = 0,
    ) -> Transfer:
        """Begins to write ``region[offset:offset + num_bytes]`` into a region of the peer. Never
        blocks.

        Args:
            peer: the number of the peer.
            region: the source, of this fabric.
            remote: the peer's region, its ``remote``.
            offset: where the bytes begin in ``region``.
            num_bytes: None: all from ``offset`` on.
            remote_offset: where the bytes go in the peer's region.

        Returns:
            The transfer.

        Raises:
            ConnectingError, WouldBlockError: nothing happened; try again (``retry`` does).
            InvalidArgument: outside one of the regions.
        """
        return self._post(
            abi.MW_TRANSFER_WRITE, peer, region, offset, num_bytes, remote, remote_offset
        )

    def write_imm(
        self,
        peer: int,
        region: Region | None,
        remote: Remote,
        imm: int,
        *,
        offset: int = 0,
        num_bytes: int | None = None,
        remote_offset: int = 0,
    ) -> Transfer:
        """As ``write``; then a ``receive_imm`` of the peer gets a number.

        Args:
            peer, offset, num_bytes, remote_offset: as for ``write``.
            region, remote: as for ``write``; None: only the number is sent.
            imm: the number, 32 bits.

        Returns:
            The transfer.

        Raises:
            MoewireError: as for ``write``.
        """
        return self._post(
            abi.MW_TRANSFER_WRITE_IMM, peer, region, offset, num_bytes, remote, remote_offset,
            integer("imm", imm, 0, (1 << 32) - 1),
        )  # fmt: skip

    def read(
        self,
        peer: int,
        region: Region,
        remote: Remote,
        *,
        offset: int = 0,
        num_bytes: int | None = None,
        remote_offset: int = 0,
    ) -> Transfer:
        """Begins to read ``num_bytes`` out of a region of the peer. Never blocks.

        Args:
            peer: the number of the peer.
            region: the target, of this fabric.
            remote: the peer's region, its ``remote``.
            offset: where the bytes go in ``region``.
            num_bytes: None: as many as fit from ``offset`` on.
            remote_offset: where the bytes begin in the peer's region.

        Returns:
            The transfer.

        Raises:
            MoewireError: as for ``write``.
        """
        return self._post(
            abi.MW_TRANSFER_READ, peer, region, offset, num_bytes, remote, remote_offset
        )

    def receive_imm(self, peer: int) -> Transfer:
        """Begins to wait for the number of a peer's ``write_imm``: each gets one, in order.

        Args:
            peer: the number of the peer.

        Returns:
            The transfer; ``imm`` of its result is the number.
        """
        return self._post(abi.MW_TRANSFER_RECEIVE_IMM, peer, None, 0, None, None, 0)

    def send(
        self, peer: int, region: Region, *, offset: int = 0, num_bytes: int | None = None
    ) -> Transfer:
        """Begins to send a message; needs ``messages=True``. Done when a ``recv`` has it.

        Args:
            peer, region, offset, num_bytes: as for ``write``.

        Returns:
            The transfer.

        Raises:
            MoewireError: as for ``write``.
        """
        return self._post(abi.MW_TRANSFER_SEND, peer, region, offset, num_bytes, None, 0)

    def recv(
        self, peer: int, region: Region, *, offset: int = 0, num_bytes: int | None = None
    ) -> Transfer:
        """Begins to wait for a message of at most ``num_bytes``; needs ``messages=True``.

        Args:
            peer: the number of the peer.
            region: the target, of this fabric.
            offset: where the message goes in ``region``.
            num_bytes: None: as many as fit from ``offset`` on.

        Returns:
            The transfer. ``Result.imm`` says which message it has got: receives may complete in any
            order.

        Raises:
            MoewireError: as for ``write``.
        """
        return self._post(abi.MW_TRANSFER_RECV, peer, region, offset, num_bytes, None, 0)

    @staticmethod
    def retry(begin: Callable[[], Transfer], timeout_us: int = 10_000_000) -> Transfer:
        """Calls ``begin()`` until it raises neither ``ConnectingError`` nor ``WouldBlockError``.

        Args:
            begin: begins a transfer, for example by ``write``.
            timeout_us: when it has passed, the last of these errors is raised.

        Returns:
            The transfer.
        """
        end = time.monotonic_ns() // 1000 + integer("timeout_us", timeout_us, 0, MAX_63)
        while True:
            try:
                return begin()
            except (ConnectingError, WouldBlockError):
                if time.monotonic_ns() // 1000 >= end:
                    raise
                time.sleep(0.0002)

    def _post(
        self,
        kind: int,
        peer: int,
        region: Region | None,
        offset: int,
        num_bytes: int | None,
        remote: Remote | None,
        remote_offset: int,
        imm: int = 0,
    ) -> Transfer:
        if region is None:
            region_id, room = 0, 0
        elif isinstance(region, Region):
            region_id, room = region._number, region.num_bytes
        else:
            raise refuse("region", f"a {type(region).__name__}", "what register() returned")
        if num_bytes is None:
            num_bytes = max(room - integer("offset", offset, 0, MAX_63), 0)
        if not _are_plain(peer, offset, num_bytes, remote_offset):
            offset = integer("offset", offset, 0, MAX_63)
            peer = peer_number(peer)
            num_bytes = integer("num_bytes", num_bytes, 0, MAX_63)
            remote_offset = integer("remote_offset", remote_offset, 0, MAX_63)
        address, length, key = (0, 0, 0) if remote is None else _remote_of(remote)
        args = take_args()
        ARGS.pack_into(
            args, 0, ARGS.size, kind, peer, region_id, offset, num_bytes,
            address, length, key, remote_offset, imm, 0,
        )  # fmt: skip
        transfer_id = abi.mw_transfer_t()
        status = self._lib.transfer_post(self._id, args, transfer_id)
        spare_args.append(args)
        self._check(status)
        return Transfer(self, transfer_id, region)


def _are_plain(peer: object, offset: object, num_bytes: object, remote_offset: object) -> bool:
    """Whether these are ints within their bounds; if not, ``integer`` has to check each."""
    return (
        type(peer) is type(offset) is type(num_bytes) is type(remote_offset) is int
        and 0 <= peer <= MAX_64
        and 0 <= offset <= MAX_63
        and 0 <= num_bytes <= MAX_63
        and 0 <= remote_offset <= MAX_63
    )


def _remote_of(remote: Remote) -> Remote:
    """Three checked numbers, as from JSON or a pickle: ctypes would truncate larger ones."""
    if type(remote) is Remote:
        a, b, c = remote
        if type(a) is type(b) is type(c) is int and min(a, b, c) >= 0 and max(a, b, c) <= MAX_64:
            return remote
    try:
        given = Remote(*remote)
    except TypeError:
        raise refuse("remote", repr(remote), "the three numbers of a Region's remote") from None
    for name, value in zip(Remote._fields, given, strict=True):
        integer(f"remote.{name}", value, 0, MAX_64)
    return given


def peer_number(peer: int) -> int:
    """A peer's number, as callers give it."""
    return integer("peer", peer, 0, MAX_64)
