"""What the packed and the flat form share in their backward.

The backward of a combine is a dispatch; the backward of a dispatch is a combine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from .._base import check
from .._ep import selections
from ..buffer import Buffer
from ..errors import UnsupportedError
from . import _piggyback

if TYPE_CHECKING:
    from .._base.place import Place
    from ..handle import Held
    from ._rows import ReceivedRows

AnyHandle = TypeVar("AnyHandle", bound="Held")


def piggyback_hint(hidden: object, num_topk: object) -> tuple[int, int]:
    """Checked arguments of a size hint: the width of a backward's rows, and K."""
    topk = check.limited("num_topk", num_topk)
    width = check.limited("hidden", hidden)
    return width + _piggyback.num_values(topk), topk


def check_inputs(
    buffer: object, x: torch.Tensor, topk_idx: torch.Tensor, topk_weights: torch.Tensor
) -> None:
    """Checks what a forward sends, before anything is made for it."""
    if not isinstance(buffer, Buffer):
        raise check.refuse("buffer", type(buffer).__name__, "a moewire.Buffer")
    refuse_capture(buffer)
    place = place_of(buffer)
    check.tensor("x", x, torch.bfloat16, (None, None), place)
    ids, weights = selections.dtypes(selections.flags(topk_idx, topk_weights))
    check.tensor("topk_idx", topk_idx, ids, (x.shape[0], None), place, selections.IDS)
    check.topk(topk_idx.shape[1])
    shape = tuple(topk_idx.shape)
    check.tensor("topk_weights", topk_weights, weights, shape, place, selections.WEIGHTS)


def refuse_capture(buffer: Buffer) -> None:
    """Raises during a capture, before anything of a forward or a backward is recorded."""
    if place_of(buffer).recording():
        raise UnsupportedError(
            "the number of rows is waited for on the host: not while the stream is captured into "
            "a graph"
        )


def place_of(buffer: Buffer) -> Place:
    """Where the buffer's rows lie."""
    return buffer.runtime.place


class Returning(Generic[AnyHandle]):
    """An operation of the backward that has been dispatched and is to be combined."""

    def __init__(self, recv_x: torch.Tensor, handle: AnyHandle, received: ReceivedRows) -> None:
        self.recv_x = recv_x  # [n, H + num_values(K)], in the workspace
        self.handle = handle
        self.received = received

    def take(self, keys: torch.Tensor) -> torch.Tensor:
        """The received rows in the order of the forward; zeros for rows that did not come again."""
        rows, found = self.received.take(self.recv_x), self.received.find(keys)
        there = found >= 0
        if keys.numel() == rows.shape[0] and bool(there.all()):
            return rows
        again = rows.new_zeros((keys.numel(), rows.shape[1]))
        again[there] = rows[found[there]]
        return again

    def put(self, rows: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Rows in the order of the forward -> rows in this operation's; zeros where none was."""
        found = self.received.find(keys)
        there = found >= 0
        placed = rows.new_zeros((self.received.keys.numel(), rows.shape[1]))
        placed[found[there]] = rows[there]
        return placed


class _WhenOver:
    """What autograd holds during one backward: releases what the second half did not take.

    Autograd calls it when the backward has succeeded, and drops it in any case. If it is dropped
    without a call, an exception came between the two halves.
    """

    def __init__(self, call: Call[Any], returning: Returning[Any]) -> None:
        self._call = call
        self._returning = returning

    def __call__(self) -> None:
        if self._call.forget(self._returning):
            self._returning.handle.release()

    def __del__(self) -> None:
        if self._call.forget(self._returning):
            self._returning.handle._release()  # raises nothing: no caller would get it


class Call(Generic[AnyHandle]):
    """One layer's call: how its operations are made, and what is open in its backward."""

    def __init__(
        self,
        buffer: Buffer,
        active_ranks: torch.Tensor | None,
        num_max_tokens: int,
        num_experts: int,
        timeout_us: int,
    ) -> None:
        self.buffer = buffer
        self.active_ranks = active_ranks
        self.num_max_tokens = num_max_tokens
        self.num_experts = num_experts
        self.timeout_us = timeout_us
        self._returning: Returning[AnyHandle] | None = None

    def keep(self, returning: Returning[AnyHandle]) -> Returning[AnyHandle]:
        """Keeps it for the second half, at most until this backward ends, however it ends."""
        self._returning = returning
        # Autograd leaves the second half out where no requested gradient needs it.
        over = _WhenOver(self, returning)
        torch.autograd.Variable._execution_engine.queue_callback(over)
        return returning

    def take_returning(self) -> Returning[AnyHandle] | None:
        """What was kept."""
        returning, self._returning = self._returning, None
        return returning

    def forget(self, returning: Returning[Any]) -> bool:
        """Keeps it no longer; False if the second half has come, or a later backward keeps one."""
        if self._returning is not returning:
            return False
        self._returning = None
        return True

    def close_returning(self) -> None:
        """Releases what was kept."""
        returning = self.take_returning()
        if returning is not None:
            returning.handle.release()

    def check_size(self, hint: str, need: int) -> None:
        """Refuses in the forward what would not fit in the backward; ``hint`` gave ``need``."""
        given = self.buffer.num_ep_buffer_bytes
        if given < need:
            allowed = f"at least moewire.autograd.{hint}(...) = {need} for this shape"
            raise check.refuse("buffer", f"one of num_ep_buffer_bytes={given}", allowed)


def new_anchor(x: torch.Tensor) -> torch.Tensor:
    """Makes results require gradients on every rank alike. Otherwise a rank might leave out a
    backward in which other ranks wait. On the device of ``x``.
    """
    learns = torch.is_grad_enabled()
    return torch.empty(0, dtype=torch.float32, device=x.device, requires_grad=learns)
