"""The collectives of the vLLM plug-in's repairs, on ranks without vLLM."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.distributed as dist

from moewire.integrations.vllm import repairs


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
