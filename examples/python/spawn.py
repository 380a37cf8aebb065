#!/usr/bin/env python3
"""Starting ranks with torch.multiprocessing: runs ../moe_layer.py on two.

    python examples/python/spawn.py

``mp.spawn`` starts fresh processes. Not fork: a loaded Go library does not survive it.
"""

import os
import runpy
import socket
from pathlib import Path

import torch.multiprocessing as mp

PROGRAM = Path(__file__).parents[1] / "moe_layer.py"
RANKS = 2


def rank_main(rank, port):
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(RANKS),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    runpy.run_path(str(PROGRAM), run_name="__main__")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    mp.spawn(rank_main, args=(free_port(),), nprocs=RANKS)
