"""The worker that copies between vLLM's KV cache and memory, against loops over tensors."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

BLOCKS, CHUNKS, PER_CHUNK = 40, 12, 3
PAGES = (48, 32)  # of each tensor; the first has padding, and lies in every second row
GROUPS = ([(0, 40), (1, 32)], [(1, 32)])  # tensor, and bytes of a page that count


class _Region:
    """Memory of the tier: a row per chunk, other workers' bytes before and behind ours."""

    def __init__(self) -> None:
        self.row = 16 + sum(PAGES) * PER_CHUNK + 16
        self.memory = torch.zeros((CHUNKS, self.row), dtype=torch.int8)
        self.at = 16
        self.cleaned = 0

    def create_next_worker_view(self, size: int) -> Any:
        view = self.memory[:, self.at : self.at + size]
        self.at += size
        return view

    def cleanup(self) -> None:
        self.cleaned += 1


def copies(_rank: int, _size: int, _folder: Path) -> list[str]:
    """What is wrong."""
    from moewire.integrations.vllm.offload._cpu_worker import CPUWorker

    rng, region = random.Random(3), _Region()
    torch.manual_seed(3)
    tensors = [_random(2 * BLOCKS, PAGES[0])[::2], _random(BLOCKS, PAGES[1])]
    given = [
        SimpleNamespace(tensor=tensor, page_size_bytes=page)
        for tensor, page in zip(tensors, PAGES, strict=True)
    ]
    refs = [[SimpleNamespace(tensor_idx=t, page_size_bytes=n) for t, n in one] for one in GROUPS]
    caches = SimpleNamespace(tensors=given, group_data_refs=refs)
    worker = CPUWorker(caches, PER_CHUNK, region)
    wrong = []
    for number in range(200):
        spec, chunks = _transfer(rng)
        want = [region.memory.clone(), *(tensor.clone() for tensor in tensors)]
        store = rng.random() < 0.5
        moved = _expected(want, spec, chunks, store)
        submit = worker.submit_store if store else worker.submit_load
        tier = SimpleNamespace(block_ids=torch.tensor(chunks).numpy())
        took = submit(number, spec, tier) if store else submit(number, tier, spec, expedited=True)
        worker.wait({number})
        (done,) = worker.get_finished()
        if not all(map(torch.equal, want, [region.memory, *tensors])):
            wrong.append(f"bytes of transfer {number}")
        if (took, done.job_id, done.success, done.transfer_size) != (True, number, True, moved):
            wrong.append(f"result of transfer {number}: {done}, {moved} bytes")
    wrong += _misfit(worker)
    worker.shutdown()
    worker.shutdown()
    return [*wrong, *(["region"] if region.cleaned != 1 else [])]


def _random(rows: int, columns: int) -> torch.Tensor:
    return torch.randint(-128, 128, (rows, columns), dtype=torch.int8)


def _transfer(rng: random.Random) -> tuple[Any, list[int]]:
    """Consecutive blocks of a request for each group, and the chunks that have them."""
    ids = rng.sample(range(BLOCKS), 20)
    sizes = [rng.randint(0, 8) for _ in GROUPS]
    firsts = [rng.randint(0, 5) for _ in GROUPS]
    numbers = rng.sample(range(CHUNKS), CHUNKS)
    chunks = [
        [numbers.pop() for _ in {at // PER_CHUNK for at in range(first, first + size)}]
        for size, first in zip(sizes, firsts, strict=True)
    ]
    blocks = torch.tensor(ids[: sum(sizes)], dtype=torch.int32).numpy()
    spec = SimpleNamespace(block_ids=blocks, group_sizes=sizes, block_indices=firsts)
    return spec, [chunk for one in chunks for chunk in one]


def _expected(want: list[Any], spec: Any, chunks: list[int], store: bool) -> int:
    """Makes the transfer in ``want``: the tier's memory and the tensors. Bytes moved."""
    memory, *tensors = want
    ids, left, moved = list(map(int, spec.block_ids)), list(chunks), 0
    for layers, size, first in zip(GROUPS, spec.group_sizes, spec.block_indices, strict=True):
        seen: dict[int, int] = {}
        for at in range(first, first + size):
            block = ids.pop(0)
            if at // PER_CHUNK not in seen:
                seen[at // PER_CHUNK] = left.pop(0)
            row = memory[seen[at // PER_CHUNK]]
            for tensor, length in layers:
                begin = 16 + PER_CHUNK * sum(PAGES[:tensor]) + PAGES[tensor] * (at % PER_CHUNK)
                there, here = row[begin : begin + length], tensors[tensor][block, :length]
                (there if store else here).copy_(here if store else there)
                moved += length
    return moved


def _misfit(worker: Any) -> list[str]:
    """Chunks that no block is for are a defect of the caller's: not passed over."""
    ids = torch.tensor([1], dtype=torch.int32).numpy()
    spec = SimpleNamespace(block_ids=ids, group_sizes=[1, 0], block_indices=[0, 0])
    try:
        worker.submit_store(0, spec, SimpleNamespace(block_ids=[0, 1]))
    except RuntimeError:
        return []
    return ["a misfit is passed over"]
