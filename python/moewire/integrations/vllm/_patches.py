"""Where vLLM 0.32.0's names are replaced: what platforms have in common.

What each one has of its own is in ``_on_cpu`` and ``_on_cuda``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from . import _platform
from ._replacement import Replacement

FUSED_MOE = "vllm.model_executor.layers.fused_moe"
AG_RS = "allgather_reducescatter"  # --all2all-backend, vLLM's default


class Plan(NamedTuple):
    """What is to be replaced, and that in words."""

    todo: list[Replacement]
    words: str


def install(parts: frozenset[str]) -> str:
    """Replaces what ``parts`` need; what was done, in words. Idempotent, not reversible.

    Everything is looked up before the first replacement: if anything is raised, such as
    ``UnsupportedError`` where Moewire takes no tensors of vLLM's platform, nothing is replaced.
    """
    kind = _platform.kind()
    if {"manager", "batched"} <= parts:
        from ...errors import InvalidArgument

        raise InvalidArgument("MOEWIRE_VLLM: manager and batched given; one of them")
    plans = _plans(kind, parts)
    todo = [one for plan in plans for one in plan.todo]
    for one in todo:
        one.refuse_unknown()
    for one in todo:
        one.make()
    return ", ".join(plan.words for plan in plans)


def _plans(kind: _platform.Kind, parts: frozenset[str]) -> list[Plan]:
    own: Any
    if kind == "cpu":
        from . import _on_cpu as own
    else:
        from . import _on_cuda as own
    plans = own.plans(parts)
    if "manager" in parts:
        plans.append(_manager())
    if "batched" in parts:
        plans.append(own.batched())
    return list(plans)


def _manager() -> Plan:
    from vllm.distributed.device_communicators import all2all

    from .manager import FlatAll2AllManager

    # The communicators of every platform import it when they use it.
    todo = [Replacement(all2all, "AgRsAll2AllManager", FlatAll2AllManager)]
    return Plan(todo, f"flat exchange for --all2all-backend {AG_RS}")


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
