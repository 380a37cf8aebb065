"""What runs a buffer's operations: one interface, implemented for each kind of device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from ctypes import Structure
from typing import Any, TypeAlias

import torch

from .._base import check
from .._base.place import Place
from .._native.plan import Plan, Plans
from .._native.runtime import Runtime
from ..event import EventOverlap, Hook, How
from ..handle import Handle
from . import combine as _combine
from . import dispatch as _dispatch
from .flat_results import FlatHandle, FlatRows
from .held import HeldRule
from .results import RecvX

PackedResults: TypeAlias = tuple[RecvX, torch.Tensor, Handle]
FlatResults: TypeAlias = tuple[FlatHandle, FlatRows]
Ending: TypeAlias = tuple[EventOverlap, Hook | None]


class Engine(Runtime, ABC):
    """The native side of a buffer with its operations. Any thread may use it.

    ``_member`` chooses the implementation, once. Nothing else asks what kind a buffer has.
    """

    place: Place
    quick: check.Quick  # whether a value is certainly a contiguous tensor of a dtype there
    drives: bool  # whether calls, hooks and events wait in the caller's thread

    def __init__(self, overwrites_held: bool, **config: Any) -> None:
        super().__init__(**config)
        self.plans = Plans(self.num_ranks)
        self.held = HeldRule(overwrites_held)

    @abstractmethod
    def selections(
        self, topk_idx: torch.Tensor, topk_weights: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None, int]:
        """Ids and weights as the library takes them, and ``MW_TOPK_*`` flags for what they are."""

    @abstractmethod
    def dispatch(
        self,
        request: _dispatch.Request,
        how: How,
        copy: bool,
        wait_ns: torch.Tensor | None = None,
    ) -> tuple[Any, Ending]:
        """Dispatches as far as ``how`` says.

        Args:
            request: its flags say which form it has.
            how: how the call ends.
            copy: return ordinary tensors, not views of the workspace.
            wait_ns: int64 [R], to which a device adds its waits.

        Returns:
            ``PackedResults`` or ``FlatResults``; the event and the hook.
        """

    @abstractmethod
    def combine(
        self,
        handle: Handle | FlatHandle,
        request: _combine.Request,
        how: How,
        wait_ns: torch.Tensor | None = None,
    ) -> Ending:
        """Combines as far as ``how`` says, into ``request.out``."""

    @abstractmethod
    def combine_view(self, handle: Handle | FlatHandle, timeout_us: int) -> torch.Tensor:
        """All rows of a handle's combine buffer, once no rank reads them any more."""

    def may_lead(self) -> None:
        """Raises if the caller's stream does not allow a call that the host leads."""

    @abstractmethod
    def collective(
        self, function: Callable[..., int], args: Structure, borrowed: tuple[object, ...]
    ) -> None:
        """Makes a call of ``moewire_routing.h`` and returns at its end.

        Args:
            function: takes the buffer, ``args`` and an operation.
            args: of the call, with a slice.
            borrowed: what has to live until the end.
        """

    def side_stream(self) -> Any:
        """The stream of operations that end by an event."""
        return self.place.stream()

    def output(self, out: torch.Tensor | None, handle: Handle | FlatHandle) -> torch.Tensor:
        """The caller's ``out``, or a new tensor: bf16 [T, H]."""
        shape = (handle._num_tokens, handle._plan.hidden)
        if out is None:
            return self.place.empty(shape, torch.bfloat16)
        check.known("out", out, torch.bfloat16, shape, self.place, self.quick)
        return out

    def plan_of(self, request: _dispatch.Request) -> Plan:
        """The plan of a dispatch; raises if an argument but ``active_ranks`` is wrong."""
        plan = _dispatch.known_plan(self.plans, request, self.quick)
        if plan is None:
            plan = self.plans.of(_dispatch.check_request(request, self.num_ranks, self.place))
        if self.closed:
            self.refuse_closed()
        return plan

    def ready(self, handle: Handle | FlatHandle, request: _combine.Request) -> tuple[int, int]:
        """Checks a combine and finishes its dispatch; address and length of ``active_ranks``."""
        _combine.check_request(request, handle, self.place, self.quick)
        active = check.active_ranks(request.active_ranks, self.num_ranks, self.place)
        if self.closed:
            self.refuse_closed()
        handle.finish()
        if isinstance(handle, FlatHandle):
            _combine.check_rows(request, handle, self.place)
        return active
