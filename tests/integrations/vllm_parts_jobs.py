"""Parts of the vLLM plug-in, on ranks without vLLM."""

from __future__ import annotations

import os
from types import SimpleNamespace

import torch
import torch.distributed as dist

from moewire import PeerLostError
from moewire.integrations import _buffers
from moewire.integrations.vllm import _flat, _lost, _sizes, repairs


def collectives() -> list[str]:
    """The wrong ones."""
    rank, size = dist.get_rank(), dist.get_world_size()
    communicator = SimpleNamespace(
        world_size=size, rank_in_group=rank, device_group=dist.group.WORLD
    )
    wrong = []
    for sizes in ([2, 0, 5], [3, 3, 3], [1, 4, 2]):
        rows = [torch.full((count, 2), 10.0 * r) for r, count in enumerate(sizes)]
        ids = [torch.full((count,), r, dtype=torch.int32) for r, count in enumerate(sizes)]
        found = repairs.all_gatherv(communicator, [rows[rank], ids[rank]], 0, sizes)
        if not all(map(torch.equal, found, (torch.cat(rows), torch.cat(ids)))):
            wrong.append(f"all_gatherv {sizes}")
        parts = [torch.arange(float(sum(sizes))) * (1 + r) for r in range(size)]
        share = repairs.reduce_scatterv(communicator, parts[rank], 0, sizes)
        if not torch.equal(share, sum(parts).split(sizes)[rank]):
            wrong.append(f"reduce_scatterv {sizes}")
    return wrong


def late(device: str = "cpu") -> list[str]:
    """What the first rank says when the other one does not dispatch, in bf16 and in float32.

    Only after an exchange that was right.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    said = []
    for dtype in (torch.bfloat16, torch.float32):
        os.environ[_lost.TIMEOUT] = "30000000"
        sizes = _sizes.Sizes(size, 2 * size, 4, 64, 1, dtype)
        x, weights = torch.ones((2, 64), dtype=dtype), torch.ones((2, 1))
        ids = torch.tensor([[0], [2 * size - 1]])  # one of each rank's experts
        watch = _lost.Watch(size, device)
        place = _buffers.InGroup(dist.group.WORLD, device)
        exchange = _flat.FlatExchange(sizes, place, watch)
        sent = exchange.dispatch(x, weights, ids, ())
        assert torch.equal(exchange.combine(sent, sent.x, None), x)
        watch.timeout_us = 200_000  # now one is late
        if rank == 0:
            sent = exchange.dispatch(x, weights, ids, ())
            try:
                watch.refuse()
                said.append("nothing")
            except PeerLostError as error:
                said.append(str(error))
        dist.barrier()
        _buffers.close_buffers(place)
    return said
