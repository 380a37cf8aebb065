"""A float32 number as three bf16 numbers that add up to it.

24 significant bits are three times 8. Exact for 0 and magnitudes from 2**-100 to the largest
bf16; smaller numbers lose digits below 2**-133. Infinities and NaN come back unchanged. Numbers
that round to more than the largest bf16 come back as infinities.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

PARTS = 3


def split(numbers: torch.Tensor) -> Iterator[torch.Tensor]:
    """float32 -> three bf16 tensors of the same shape, the largest first."""
    rest = numbers
    for _ in range(PARTS):
        part = rest.to(torch.bfloat16)
        yield part
        # An infinity leaves no rest: the difference would be NaN.
        rest = torch.where(part.isfinite(), rest - part.float(), 0.0)


def merge(first: torch.Tensor, second: torch.Tensor, third: torch.Tensor) -> torch.Tensor:
    """What ``split`` made, as float32 tensors -> float32; the smallest are added first."""
    return first + (second + third)
