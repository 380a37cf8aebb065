"""Replaces names of vLLM 0.32.0: the part that platforms have in common.

The parts of each platform are in ``_on_cpu`` and ``_on_cuda``.
"""

from __future__ import annotations

from typing import Any

from . import _platform
from ._plan import AG_RS, Plan
from ._replacement import Replacement


def install(parts: frozenset[str]) -> str:
    """Replaces what ``parts`` need; returns what was done, in words. Idempotent, not reversible.

    Everything is looked up before the first replacement. If a look-up raises, nothing is replaced:
    for example ``UnsupportedError``, if Moewire takes no tensors of vLLM's platform.
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
