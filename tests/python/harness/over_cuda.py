"""Jobs that were written for buffers on the CPU, with all their tensors on a CUDA device.

The job's own source runs. Buffers and tensors that name no device are on CUDA, and rows of one
source may lie in any order.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import moewire

from . import jobs_cuda, jobs_routing, verify
from .member import Rank
from .on_cuda import current_device, folder_of

# On CUDA a size has to be given; this is more than any of these jobs needs.
_BYTES_PER_SLOT = 8 << 20
# So few that rows of 16 KiB go in rounds: a slot has room for outputs as well.
_SMALL = 12 << 20
_TESTS = str(Path(__file__).resolve().parents[2])
_from_numpy = torch.from_numpy


class CudaBuffer(moewire.Buffer):
    """A ``Buffer`` on CUDA, unless a device is given."""

    def __init__(self, group: Any, num_ep_buffer_bytes: int = 0, *rest: Any, **own: Any) -> None:
        super().__init__(group, num_ep_buffer_bytes or _room(own), *rest, **_on_cuda(own))

    @classmethod
    def from_store(  # type: ignore[override]
        cls, store: Any, rank: int, size: int, num_bytes: int = 0, **own: Any
    ) -> moewire.Buffer:
        return super().from_store(store, rank, size, num_bytes or _room(own), **_on_cuda(own))

    @classmethod
    def from_exchange(  # type: ignore[override]
        cls, exchange: Any, rank: int, size: int, num_bytes: int = 0, **own: Any
    ) -> moewire.Buffer:
        return super().from_exchange(exchange, rank, size, num_bytes or _room(own), **_on_cuda(own))


def _room(options: dict[str, Any]) -> int:
    return _BYTES_PER_SLOT * int(options.get("num_slots", 2))


def _on_cuda(options: dict[str, Any]) -> dict[str, Any]:
    return {"device": "cuda", **options}


def _there(array: Any) -> torch.Tensor:
    """``torch.from_numpy`` for jobs; others get what torch gives."""
    tensor = _from_numpy(array)
    inside = sys._getframe(1).f_code.co_filename.startswith(_TESTS)
    return tensor.to("cuda") if inside else tensor


def over_cuda(rank: Rank, driver: str, job: Callable[..., Any], *args: Any) -> Any:
    """The job's answer. ``driver``: of ``current_device``."""
    with current_device(driver, folder_of(rank.folder, rank.rank)) as place, changed():
        answer = job(rank, *args)
        place.synchronize_all()
        return answer


@contextmanager
def changed() -> Iterator[None]:
    with ExitStack() as stack:
        for where, name, other in (
            (moewire, "Buffer", CudaBuffer),
            (torch, "from_numpy", _there),
            (verify, "Received", jobs_cuda.Received),
            (verify, "TIMEOUT_US", jobs_cuda.TIMEOUT_US),
            (verify, "REPORTED_LATER", True),
            (jobs_routing, "SMALL", _SMALL),
            (verify, "LOST_LEAVE_GAPS", True),
        ):
            stack.enter_context(patch.object(where, name, other))
        yield
