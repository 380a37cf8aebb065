"""One dispatch and combine under a launcher: torchrun, mpirun, or ``mp.spawn`` (argument)."""

from __future__ import annotations

import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import moewire


def pair(group: dist.ProcessGroup) -> None:
    """Expert e answers e + 1 times its input; the ranks print that all is well."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    tokens, hidden, experts = 5 + rank, 64, 2 * size
    x = torch.full((tokens, hidden), rank + 1, dtype=torch.bfloat16)
    idx = (torch.arange(2 * tokens).view(tokens, 2) + rank) % experts
    with moewire.Buffer(group) as buffer:
        recv_x, _, handle, _, _ = buffer.dispatch(
            x, idx, None, 5 + size, experts, 30_000_000, use_fp8=False
        )
        factor = torch.arange(2 * rank, 2 * rank + 2).view(2, 1, 1) + 1
        weights = torch.ones(tokens, 2)
        out, _, _ = buffer.combine(
            (recv_x * factor).contiguous(), idx, weights, None, 30_000_000, handle
        )
    want = x * (idx + 1).sum(1, keepdim=True)
    if not torch.equal(out, want.bfloat16()):
        raise SystemExit(f"rank {rank}: wrong")
    print(f"rank {rank} of {size}: right\n", end="", flush=True)


def _spawned(rank: int, size: int, path: str) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(path, size), rank=rank, world_size=size)
    pair(dist.group.WORLD)
    dist.destroy_process_group()


def _torch_names_for_mpi() -> None:
    """mpirun sets its own variables; torch reads these."""
    names = {"RANK": "OMPI_COMM_WORLD_RANK", "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE"}
    for ours, theirs in names.items():
        if theirs in os.environ:
            os.environ.setdefault(ours, os.environ[theirs])
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29571")


def main() -> None:
    if sys.argv[1:] == ["spawn"]:
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(_spawned, args=(2, os.path.join(folder, "store")), nprocs=2)
        return
    _torch_names_for_mpi()
    dist.init_process_group("gloo")
    pair(dist.group.WORLD)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
