"""One rank that dispatches and combines until a file appears: ``loop.py RANK SIZE FOLDER``.

After an error it says so and stays, so that others can look at it.
"""

from __future__ import annotations

import logging
import os
import sys
import time

import torch
import torch.distributed as dist

import moewire


def step(buffer: moewire.Buffer, x: torch.Tensor, experts: int) -> None:
    """Everybody sends to everybody."""
    idx = torch.arange(2 * len(x)).view(len(x), 2) % experts
    recv_x, _, handle, _, _ = buffer.dispatch(x, idx, None, len(x), experts, -1, use_fp8=False)
    y = buffer.get_next_combine_buffer(handle)
    y.copy_(recv_x)
    buffer.combine(y, idx, torch.ones(idx.shape), None, -1, handle, zero_copy=True)


def main() -> None:
    rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    logging.basicConfig(format="%(levelname)s %(name)s %(message)s")
    torch.set_num_threads(1)
    store = dist.FileStore(os.path.join(folder, "store"), size)
    buffer = moewire.Buffer.from_store(store, rank, size)
    stop = os.path.join(folder, "stop")
    try:
        while not os.path.exists(stop):
            step(buffer, torch.ones((8, 256), dtype=torch.bfloat16), 2 * size)
            time.sleep(0.005)
    except moewire.MoewireError as error:
        print(f"rank {rank} ended: {type(error).__name__}", file=sys.stderr, flush=True)
        while not os.path.exists(stop):
            time.sleep(0.05)


if __name__ == "__main__":
    main()
