"""The harness's own ways that are not plain."""

from __future__ import annotations

import torch

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
