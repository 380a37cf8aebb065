"""What a flat dispatch received: N rows, N known when the receive phase has ended."""

from __future__ import annotations

from .._base import needs_torch  # noqa: F401, isort: skip

import torch

from .. import _abi as abi
from .._base.opaque import opaque_methods
from .._native.plan import Plan
from .._native.runtime import Runtime
from ..event import EventOverlap, Hook
from ..handle import Driven, Held
from .results import RecvX, Rows


class FlatRows:
    """The rows of one dispatch, once they are there. The operation refers to it, not it to that."""

    def __init__(self, counts: torch.Tensor, layout: torch.Tensor) -> None:
        self.counts, self.layout = counts, layout  # written by the library
        self.num_rows = 0
        self.tensors: Rows | None = None

    def ranges(self) -> torch.Tensor:
        """A copy of ``layout``."""
        return self.layout.clone()

    def wait(self) -> None:
        """Returns when what the end of the receive phase tells is known."""

    def forget(self) -> None:
        """Drops the tensors; the numbers of rows stay."""
        self.tensors = None

    def fill(self, rows: Rows, copy: bool) -> None:
        """From all the room that there is. The results are complete, and were not released."""
        self.num_rows = int(self.counts[0])
        self.tensors = rows.first(self.num_rows, copy)


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
        plan: Plan,
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

    The N rows are in order of their source ranks and, within one, of their tokens. Rows are
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

    def _tensors(self) -> Rows:
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
        return self._tensors().recv_x

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
