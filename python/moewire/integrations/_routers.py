"""What is changed in a model's routers so that one process and many give the same bits."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import InvalidArgument


def fp32_router_scores(model: torch.nn.Module) -> list[torch.utils.hooks.RemovableHandle]:
    """Gives the experts float32 routing weights, in one process as in many.

    For comparisons with one process to the bit: install it on both models.

    Args:
        model: a model with routers.

    Returns:
        The hooks, each with ``remove()``.

    Raises:
        InvalidArgument: the model has no router that this knows.
    """
    routers = [module for module in model.modules() if type(module).__name__.endswith("Router")]
    if not routers:
        raise InvalidArgument(f"model: {type(model).__name__} has no router that this knows")
    return [router.register_forward_hook(_scores_to_fp32) for router in routers]


def _scores_to_fp32(_module: Any, _arguments: Any, output: Any) -> tuple[Any, ...]:
    logits, scores, *rest = output
    return (logits, scores.float(), *rest)
