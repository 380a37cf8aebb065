"""Sockets between all pairs of ranks on different hosts."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator

import torch.distributed as dist

from . import network, plain
from .place import RankPlace

_RANK = struct.Struct("=q")


@contextlib.contextmanager
def remote_sockets(
    group: dist.ProcessGroup, place: RankPlace, remote: list[int]
) -> Iterator[list[socket.socket]]:
    """Collective: this rank's sockets, in the order of ``remote``. Host 0 dials."""
    ports: list[int] = [0] * group.size()
    with contextlib.ExitStack() as stack:
        address = (network.ADDRESSES[place.host], 0)
        listener = stack.enter_context(socket.create_server(address, backlog=len(remote)))
        listener.settimeout(30)
        dist.all_gather_object(ports, listener.getsockname()[1], group)
        found: dict[int, socket.socket] = {}
        for rank in remote:
            if place.host == 0:
                target = (network.ADDRESSES[1], ports[rank])
                one = stack.enter_context(socket.create_connection(target, timeout=30))
                one.sendall(_RANK.pack(place.rank))
                found[rank] = one
            else:
                one = stack.enter_context(listener.accept()[0])
                one.settimeout(30)
                (peer,) = _RANK.unpack(one.recv(_RANK.size, socket.MSG_WAITALL))
                found[peer] = one
        for one in found.values():
            plain.prepare(one)
        yield [found[rank] for rank in remote]
