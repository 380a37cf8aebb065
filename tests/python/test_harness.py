"""The parts of the harness that need tests of their own."""

from __future__ import annotations

import torch

from harness import autograd_world, jobs_cuda, jobs_cuda_observe, member
from harness.as_device import AsDevice
from harness.torch_device import pretending


def test_pretending_nests() -> None:
    stock = torch.zeros
    with pretending():
        assert not isinstance(torch.zeros(1), AsDevice)
        for _ in range(2):
            with pretending(by_default=True):
                assert isinstance(torch.zeros(1), AsDevice)
                assert isinstance(stock(1).to("cuda"), AsDevice)
                with pretending():
                    assert not isinstance(torch.zeros(1), AsDevice)
                assert isinstance(torch.zeros(1), AsDevice)
            assert not isinstance(torch.zeros(1), AsDevice)
            assert isinstance(torch.zeros(1, device="cuda"), AsDevice)
    assert torch.zeros is stock
    assert not {"to", "cuda"} & set(vars(torch.Tensor))


def test_live_ranks_are_not_late() -> None:
    """The waiter for a test gives up before its ranks do: they would take a rank for lost."""
    deadlines = [jobs_cuda.TIMEOUT_US, autograd_world.TIMEOUT_US]
    timeouts = [jobs_cuda.TIMEOUT_SECONDS, member.TIMEOUT_SECONDS]
    assert min(deadlines) / 1e6 >= max(timeouts)
    assert 2 * jobs_cuda_observe.TIMEOUT_SECONDS < member.TIMEOUT_SECONDS  # while one stays away
