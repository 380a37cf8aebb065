"""How an operator is made of its parts, for every version of torch that is supported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

NAMESPACE = "moewire"


def define(
    schema: str, kernel: Callable[..., Any], fake: Callable[..., Any], *, collective: bool = True
) -> Any:
    """An operator: what it does, and what it returns for tensors of which only shapes are known.

    It changes no argument, and returns fresh memory. Collective ones keep their order in a graph,
    where torch can say so. Elsewhere it may leave out a call of which nothing is used, which it
    then does on every rank, since ranks have one graph.
    """
    name, _, signature = schema.partition("(")
    operator = torch.library.custom_op(
        f"{NAMESPACE}::{name}", kernel, mutates_args=(), schema=f"({signature}"
    )
    operator.register_fake(fake)
    if collective and hasattr(operator, "register_effect"):
        from torch._library.effects import EffectType

        operator.register_effect(EffectType.ORDERED)
    return operator
