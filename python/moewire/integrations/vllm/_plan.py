"""Replacements that all platforms make alike, and how they are described."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ._replacement import Replacement

FUSED_MOE = "vllm.model_executor.layers.fused_moe"
AG_RS = "allgather_reducescatter"  # --all2all-backend, vLLM's default


class Plan(NamedTuple):
    """What is to be replaced, and its description in words."""

    todo: list[Replacement]
    words: str


def makers(modules: Iterable[str], is_ours: Callable[[Any], bool]) -> list[Replacement]:
    """``maybe_make_prepare_finalize``, in each of the modules that imported it by name.

    ``is_ours`` decides by a layer's ``FusedMoEParallelConfig``.
    """
    todo = []
    for name in modules:
        module: Any = importlib.import_module(name)
        stock = getattr(module, "maybe_make_prepare_finalize", None)
        value = _maker(stock, is_ours) if stock is not None else None
        todo.append(Replacement(module, "maybe_make_prepare_finalize", value))
    return todo


def _maker(stock: Callable[..., Any], is_ours: Callable[[Any], bool]) -> Callable[..., Any]:
    def make(moe: Any, *arguments: Any, **named: Any) -> Any:
        if not is_ours(moe.moe_parallel_config):
            return stock(moe, *arguments, **named)
        from . import _making

        return _making.batched(moe)

    return make
