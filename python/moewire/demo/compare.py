"""Whether several processes and one process did the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from .generate import Text


class Comparison(NamedTuple):
    """The answer, and how it came about."""

    num_texts: int
    num_tokens: int
    unequal_texts: list[int]  # numbers of texts
    unequal_logits: int  # steps with logits that differ in any bit, up to the first other token
    bits_must_agree: bool  # on this CPU; see ``rows_are_independent``

    @property
    def equal(self) -> bool:
        """Whether the runs are equal, as far as this CPU allows to say."""
        return not self.unequal_texts and not (self.bits_must_agree and self.unequal_logits)


def compare(together: Sequence[Text], alone: Sequence[Text], bits_must_agree: bool) -> Comparison:
    """Compares texts of the same numbers token by token, and logits bit by bit."""
    pairs = list(zip(together, alone, strict=True))
    return Comparison(
        len(pairs),
        sum(len(text.tokens) for text in alone),
        [one.number for one, other in pairs if one.tokens != other.tokens],
        sum(_unequal_logits(one, other) for one, other in pairs),
        bits_must_agree,
    )


def _unequal_logits(one: Text, other: Text) -> int:
    unequal = 0
    steps = zip(one.logits, other.logits, one.tokens, other.tokens, strict=False)
    for ours, theirs, our_token, their_token in steps:
        unequal += not torch.equal(ours.view(torch.int16), theirs.view(torch.int16))
        if our_token != their_token:
            break  # the texts went apart here
    return unequal


def rows_are_independent(model: torch.nn.Module) -> bool:
    """Whether an expert's result for a row has the same bits with any other rows beside it.

    An expert sees the tokens of all ranks at once, and in one process those of one batch. The
    matrix products of some CPUs give different last bits then.
    """
    experts = next(one for name, one in model.named_modules() if name.endswith(".experts"))
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn((64, int(experts.hidden_dim)), generator=generator).to(torch.bfloat16)
    ids = torch.arange(64).unsqueeze(1) % int(experts.num_experts)

    def run(begin: int, end: int) -> torch.Tensor:
        weights = torch.ones((end - begin, 1))
        result: torch.Tensor = experts(rows[begin:end], ids[begin:end], weights)
        return result

    everything = run(0, 64)
    alone = torch.cat([run(row, row + 1) for row in range(64)])
    pairs = torch.cat([run(row, row + 2) for row in range(0, 64, 2)])
    return bool(torch.equal(everything, alone) and torch.equal(everything, pairs))
