"""float32 rows through an exchange of bf16 rows, to the bit.

A Buffer moves bf16 rows as they are, and sums them in float32 to one bf16 result. So a float32 row
travels out as its own bytes, 2H values wide. A result comes back by itself, unsummed and
unweighted, as three bf16 values that add up to it (``_parts``), 3H values wide. The rank that the
token came from sums the results. This is for models run in float32, for comparisons: a result costs
six bytes per value instead of two.
"""

from __future__ import annotations

import torch

from ...autograd import _parts


def width(hidden: int) -> int:
    """Values per row of the bf16 exchange that carries rows of ``hidden`` float32 values."""
    return _parts.PARTS * hidden


def outgoing(x: torch.Tensor, copies: int) -> torch.Tensor:
    """float32 [T, H] -> bf16 [T * copies, 3H], the copies of a token beside each other."""
    num_tokens, hidden = x.shape
    shape = (num_tokens, copies, width(hidden))
    rows = torch.zeros(shape, dtype=torch.bfloat16, device=x.device)
    rows[:, :, : 2 * hidden] = x.contiguous().view(torch.bfloat16).unsqueeze(1)
    return rows.view(num_tokens * copies, width(hidden))


def incoming(rows: torch.Tensor, hidden: int) -> torch.Tensor:
    """What ``outgoing`` packed: bf16 [n, 3H] -> float32 [n, H], a copy.

    ``contiguous()`` would leave a single row its stride of 3H, which vLLM's kernels look at.
    """
    own = rows.new_empty((len(rows), 2 * hidden))
    return own.copy_(rows[:, : 2 * hidden]).view(torch.float32)


def split(results: torch.Tensor, out: torch.Tensor) -> None:
    """float32 [n, H] -> ``out``, bf16 [n, 3H]: three parts that add up to it."""
    for place, part in zip(out.chunk(_parts.PARTS, dim=1), _parts.split(results), strict=True):
        place.copy_(part)


def merge(parts: torch.Tensor) -> torch.Tensor:
    """What ``split`` made: bf16 [n, 3H] -> float32 [n, H]."""
    return _parts.merge(*parts.float().chunk(_parts.PARTS, dim=1))
