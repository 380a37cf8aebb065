"""The exchange as vLLM's experts see it, between two ranks, against a naive reference.

Called in the ranks of a running engine, all at the same time. Every rank knows the tokens of
all: they follow from seeds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import vllm_model as tiny
from vllm.distributed import get_ep_group

EXPERTS, TOPK, HIDDEN = tiny.EXPERTS, tiny.TOPK, 64
NUM_TOKENS = ((5, 7), (0, 9), (4, 0), (33, 1))  # of each rank
DTYPES = (torch.bfloat16, torch.float32)


class Tokens(NamedTuple):
    """Of one rank."""

    x: torch.Tensor  # [T, H]
    weights: torch.Tensor  # float32 [T, K]
    ids: torch.Tensor  # [T, K]
    scales: torch.Tensor  # float32 [T, 3]
    adapters: torch.Tensor  # int32 [T]


def check(rank: int, size: int) -> dict[str, Any]:
    """The wrong ones by case, [] if none, of whatever exchange this process has."""
    from moewire.integrations.vllm.manager import FlatAll2AllManager

    manager = get_ep_group().device_communicator.all2all_manager
    if isinstance(manager, FlatAll2AllManager):
        import vllm_contract_flat as cases

        return cases.check(manager, rank, size)
    import vllm_contract_packed as packed

    return packed.check(rank, size)


def tokens(rank: int, num_tokens: int, dtype: torch.dtype, case: int) -> Tokens:
    """The tokens of one rank in one case. Rows are recognisable by their first two values."""
    generator = torch.Generator().manual_seed(1000 * case + rank)
    x = torch.randn((num_tokens, HIDDEN), generator=generator)
    x[:, 0] = 1 + rank
    x[:, 1] = torch.arange(num_tokens)
    scores = torch.rand((num_tokens, EXPERTS), generator=generator)
    weights, ids = scores.topk(TOPK)
    return Tokens(
        x.to(dtype),
        weights,
        ids.to(torch.int32),
        torch.rand((num_tokens, 3), generator=generator),
        torch.randint(0, 99, (num_tokens,), generator=generator, dtype=torch.int32),
    )


def all_tokens(counts: tuple[int, ...], dtype: torch.dtype, case: int) -> list[Tokens]:
    """Of every rank."""
    return [tokens(rank, count, dtype, case) for rank, count in enumerate(counts)]


def raised(call: Any) -> str:
    """What a call that must be refused says."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"
