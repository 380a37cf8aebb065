"""One of two ranks: 0 stays, 1 ends its interpreter in the middle of an operation.

    leave.py RANK FOLDER HOW [HOW ...]

Rank 0 takes part in every HOW, each in its own folder.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

import torch
import torch.distributed as dist

import moewire


def dispatch(buffer: moewire.Buffer, mask: torch.Tensor | None, **options: Any) -> Any:
    x = torch.ones((2, 64), dtype=torch.bfloat16)
    idx = torch.tensor([[0, 1], [2, 3]])
    return buffer.dispatch(x, idx, mask, 4, 4, -1, use_fp8=False, **options)


def combine(buffer: moewire.Buffer, dispatched: Any, **options: Any) -> Any:
    y = torch.zeros((2, 8, 64), dtype=torch.bfloat16)
    idx, weights = torch.tensor([[0, 1], [2, 3]]), torch.ones((2, 2))
    return buffer.combine(y, idx, weights, None, -1, dispatched[2], **options)


def stay(buffer: moewire.Buffer, folder: str) -> None:
    """Comes late, and goes on alone."""
    while not os.path.exists(os.path.join(folder, "left")):
        time.sleep(0.01)
    for _ in range(3):
        mask = torch.ones(2, dtype=torch.int32)
        dispatch(buffer, mask)[2].release()
    assert mask.tolist() == [1, 0], mask


def leave(buffer: moewire.Buffer, how: str) -> Any:
    """What it returns is alive when the interpreter ends."""
    if how == "hook":
        return dispatch(buffer, None, return_recv_hook=True)
    if how == "combine":
        dispatched = dispatch(buffer, None, return_recv_hook=True)
        thread = threading.Thread(target=combine, args=(buffer, dispatched), daemon=True)
    else:
        thread = threading.Thread(target=dispatch, args=(buffer, None), daemon=True)
    thread.start()
    time.sleep(0.3)
    assert thread.is_alive(), "it should be waiting"
    return thread


def meet(rank: int, folder: str) -> moewire.Buffer:
    os.makedirs(folder, exist_ok=True)
    store = dist.FileStore(os.path.join(folder, "store"), 2)
    return moewire.Buffer.from_store(store, rank, 2, 16 << 20)


def main() -> None:
    rank, (root, *ways) = int(sys.argv[1]), sys.argv[2:]
    for how in ways:
        folder = os.path.join(root, how)
        buffer = meet(rank, folder)
        if rank == 0:
            stay(buffer, folder)
            print(f"rank 0 went on after {how}")
            continue
        globals()["kept"] = (buffer, leave(buffer, how))
        open(os.path.join(folder, "left"), "w").close()
        print("rank 1 ends")


if __name__ == "__main__":
    main()
