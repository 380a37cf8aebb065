"""The model of examples/tiny_model.py, and prompts for it."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_TINY: dict[str, Any] = runpy.run_path(
    str(Path(__file__).resolve().parents[2] / "examples" / "tiny_model.py")
)
make: Callable[[Path], None] = _TINY["make"]
EXPERTS: int = _TINY["EXPERTS"]
TOPK: int = _TINY["TOPK"]
LAYERS: int = _TINY["LAYERS"]
VOCABULARY: int = _TINY["VOCABULARY"]

LENGTHS = (3, 9, 17, 30, 5, 12)  # of the prompts
NEW_TOKENS = (24, 16) * 3  # of the texts: the second of two ranks is done before the first


def prompts(rank: int, size: int) -> list[list[int]]:
    """Token ids of the prompts that a rank answers: every ``size``-th."""
    generator = torch.Generator().manual_seed(3)
    texts = [torch.randint(3, VOCABULARY, (n,), generator=generator).tolist() for n in LENGTHS]
    return texts[rank::size]
