"""Mooncake's names over the emulated device, as its clients call them."""

from __future__ import annotations

import torch.distributed as dist

import moewire
import moewire.compat.mooncake

from . import jobs_cuda, verify
from .jobs_input import expect
from .jobs_oracle import size_for
from .member import Rank
from .on_cuda import current_device, folder_of


def mooncake(rank: Rank, driver: str, count: int) -> int:
    """Random cases on the current device, and two more after an update."""
    with current_device(driver, folder_of(rank.folder, rank.rank), by_default=False) as place:
        moewire.compat.mooncake.install()
        from mooncake.mooncake_ep_buffer import Buffer

        group = rank.group()
        checked = jobs_cuda.random_cases(
            place,
            lambda num_bytes, **own: Buffer(group, num_bytes),  # Mooncake's has no keywords
            rank.rank,
            rank.size,
            rank.seed,
            count,
        )
        case = jobs_cuda.small(rank.seed, rank.size)
        with Buffer(group, size_for([case])) as buffer:
            assert not buffer.runtime.drives
            assert buffer.group_size == rank.size and buffer.backend is group
            for _ in range(2):
                received = jobs_cuda.dispatch(place, buffer, case, rank.rank, {})
                jobs_cuda.combine(place, buffer, received, {}, zero_copy=True)
                dist.barrier()
                buffer.update_ep_member()
        return checked


def chosen_device(rank: Rank, driver: str) -> None:
    """CPU tensors where they are asked for, and what CUDA needs by name."""
    with current_device(driver, folder_of(rank.folder, rank.rank), by_default=False):
        from moewire.compat._mooncake import Buffer

        group, case = rank.group(), jobs_cuda.small(rank.seed, 1)
        with Buffer(group, device="cpu", num_slots=3) as buffer:
            assert buffer.runtime.drives and buffer.num_slots == 3
            verify.combine(buffer, verify.dispatch(buffer, case, 0))
        text = expect(moewire.InvalidArgument, lambda: Buffer(group))
        assert "num_ep_buffer_bytes: 0 given" in text and "get_ep_buffer_size_hint" in text
