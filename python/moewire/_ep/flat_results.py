"""What a flat dispatch received: N rows, N known when the receive phase has ended."""

from __future__ import annotations

from .._base import needs_torch  # noqa: F401, isort: skip

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch

from .. import _abi as abi
from .._base.check import FP8_BLOCK, UE8M0_PACK
from .._base.opaque import opaque_methods
from .._native.flat_plan import FlatPlan
from .._native.memory import Mapping
from .._native.runtime import Runtime
from ..event import EventOverlap, Hook
from ..handle import Driven, Held
from .results import RecvX


class Tensors(NamedTuple):
    """All that a row has; undefined beyond the rows received."""

    data: torch.Tensor  # bf16 or float8_e4m3fn [R*M, H]
    scales: torch.Tensor | None  # as in _results.Rows, [R*M, ...]
    src_info: torch.Tensor  # int32 [R*M]
    topk_idx: torch.Tensor | None  # int64 [R*M, K]
    topk_weights: torch.Tensor | None  # float32 [R*M, K]
    extra: tuple[torch.Tensor, ...]  # [R*M, ...]

    def each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Tensors:
        """A copy of this with ``change`` applied to each tensor."""

        def change_if(tensor: torch.Tensor | None) -> torch.Tensor | None:
            return None if tensor is None else change(tensor)

        data, scales, src_info, topk_idx, topk_weights, extra = self
        return Tensors(
            change(data),
            change_if(scales),
            change(src_info),
            change_if(topk_idx),
            change_if(topk_weights),
            tuple(change(one) for one in extra),
        )

    def parts(self) -> list[torch.Tensor]:
        """The tensors that are not None."""
        alone = (self.data, self.scales, self.src_info, self.topk_idx, self.topk_weights)
        return [part for part in (*alone, *self.extra) if part is not None]

    def first(self, num_rows: int, copy: bool) -> Tensors:
        """The first rows: new views, which nothing else holds, or copies."""
        return self.each(lambda tensor: tensor[:num_rows].clone() if copy else tensor[:num_rows])


def _views(mapping: Mapping, raw: abi.mw_dispatch_result_t, plan: FlatPlan) -> Tensors:
    """Views of the workspace: made once per slab and plan, no copy."""
    key = (raw.recv_x, plan)
    found: Tensors | None = mapping.find(key)
    if found is None:
        found = make_views(mapping.view, raw, plan)
        mapping.keep(key, found)
    return found


# A tensor over the workspace: address, shape, dtype.
View: TypeAlias = Callable[[int, tuple[int, ...], torch.dtype], torch.Tensor]


def make_views(view: View, raw: abi.mw_dispatch_result_t, plan: FlatPlan) -> Tensors:
    """Tensors over all the room that there is, [R*M, ...]."""
    num_rows, hidden = plan.rows
    dtype = torch.float8_e4m3fn if plan.fp8 else torch.bfloat16
    scales = topk_idx = topk_weights = None
    if plan.fp8:  # contiguous as [H/128, R*M], as in the packed form
        words = hidden // (FP8_BLOCK * UE8M0_PACK if plan.ue8m0 else FP8_BLOCK)
        kind = torch.int32 if plan.ue8m0 else torch.float32
        scales = view(raw.recv_scales, (words, num_rows), kind).t()
    if not plan.no_routing:
        shape = (num_rows, plan.num_topk)
        topk_idx = view(raw.recv_topk_idx, shape, torch.int64)
        topk_weights = view(raw.recv_topk_weights, shape, torch.float32)
    return Tensors(
        view(raw.recv_x, plan.rows, dtype),
        scales,
        view(raw.src_info, (num_rows,), torch.int32),
        topk_idx,
        topk_weights,
        tuple(
            view(raw.recv_extra[at], (num_rows, *shape), dtype)
            for at, (dtype, shape) in enumerate(plan.extra)
        ),
    )


class FlatRows:
    """The rows of one dispatch, once they are there. The operation refers to it, not it to that."""

    def __init__(
        self, runtime: Runtime, raw: abi.mw_dispatch_result_t, plan: FlatPlan, copy: bool
    ) -> None:
        self._runtime = runtime
        self._raw = raw
        self._plan = plan
        self._copy = copy
        self.counts = torch.empty_like(plan.counts)  # written by the library
        self.layout = torch.empty_like(plan.layout)  # written by the library
        self.num_rows = 0
        self.tensors: Tensors | None = None

    def ranges(self) -> torch.Tensor:
        """A copy of ``layout``."""
        return self.layout.clone()

    def wait(self) -> None:
        """Returns when what the end of the receive phase tells is known."""

    def forget(self) -> None:
        """Drops the tensors; the numbers of rows stay."""
        self.tensors = None

    def fill(self) -> None:
        """Called when the results are complete, and before they can be released."""
        mapping = self._runtime.mapping(self._raw)
        self.num_rows = int(self.counts[0])
        self.tensors = _views(mapping, self._raw, self._plan).first(self.num_rows, self._copy)


@opaque_methods
class FlatHandle(Held):
    """The handle of one flat dispatch, to be combined with ``combine_flat``.

    It lives as ``Handle`` does. It also keeps the routing of its dispatch, for
    ``dispatch_flat(..., handle=...)``; that may be used after the release, too.
    """

    _made_by = "dispatch_flat"

    def __init__(
        self,
        runtime: Runtime,
        raw: abi.mw_dispatch_result_t,
        operation: Driven,
        plan: FlatPlan,
        rows: FlatRows,
        topk_idx: torch.Tensor,
    ) -> None:
        self._released = False
        self._runtime = runtime
        self._result = raw
        self._operation = operation
        self._plan = plan
        self._rows = rows
        self._topk_idx = topk_idx
        self._num_tokens = topk_idx.shape[0]

    @property
    def num_recv_tokens(self) -> int:
        """N, the number of rows received. Finishes the receive phase."""
        self.finish()
        self._rows.wait()
        return self._rows.num_rows

    @property
    def layout_range(self) -> torch.Tensor:
        """int64 [R]: ``first row << 32 | number of rows`` of each source; a copy.

        Finishes the receive phase.
        """
        self.finish()
        self._rows.wait()
        return self._rows.ranges()


@opaque_methods
class FlatReceived:
    """What ``dispatch_flat`` returns.

    ``handle``, ``event`` and ``hook`` are there at once. All else is known when the receive phase
    has ended. Reading it earlier runs what the hook or the event would run, and waits.

    The N rows are in order of their source ranks and, within one, of their tokens. Tensors are
    views of the workspace, valid until the handle is released, or ordinary ones, as ``dispatch``
    says.
    """

    def __init__(
        self, handle: FlatHandle, rows: FlatRows, event: EventOverlap, hook: Hook | None
    ) -> None:
        self.handle = handle
        self.event = event
        self.hook = hook
        self._rows = rows

    def forget(self) -> None:
        """Drops the tensors, for a caller that keeps only the handle in order to use its routing
        again."""
        self._rows.forget()

    def _tensors(self) -> Tensors:
        if self._rows.tensors is None:
            self.handle.finish()
            self._rows.wait()
        assert self._rows.tensors is not None
        return self._rows.tensors

    @property
    def num_recv_tokens(self) -> int:
        """N."""
        return self.handle.num_recv_tokens

    @property
    def recv_x(self) -> RecvX:
        """bf16 [N, H], or with fp8 a pair: float8_e4m3fn [N, H] and scales as ``dispatch``'s."""
        data, scales = self._tensors()[:2]
        return data if scales is None else (data, scales)

    @property
    def recv_topk_idx(self) -> torch.Tensor | None:
        """int64 [N, K]: expert ids on this rank, 0 to L-1; -1: not on this rank.

        None for a dispatch with the routing of another handle.
        """
        return self._tensors().topk_idx

    @property
    def recv_topk_weights(self) -> torch.Tensor | None:
        """float32 [N, K], 0 where the id is -1; None where there are no ids."""
        return self._tensors().topk_weights

    @property
    def recv_extra(self) -> tuple[torch.Tensor, ...]:
        """[N, ...] for each tensor of ``extra``."""
        return self._tensors().extra

    @property
    def src_info(self) -> torch.Tensor:
        """int32 [N]: the token index on the source rank; ``handle.layout_range`` has the ranks."""
        return self._tensors().src_info
