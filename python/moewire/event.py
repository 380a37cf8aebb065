"""Completion as the caller sees it: hooks and events."""

from __future__ import annotations

from ._base import needs_torch  # noqa: F401, isort: skip

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from ._base import check
from ._base.opaque import opaque_methods
from .errors import InvalidArgument

if TYPE_CHECKING:
    from ._base.place import Place


class NoEventError(InvalidArgument, AssertionError):
    """The call was not made with ``async_finish=True``, so there is nothing to wait for."""


class Finishable(Protocol):
    """Something that can be driven to its end, more than once."""

    def finish(self) -> None: ...


@opaque_methods
class Hook:
    """Finishes the second phase of an operation when called.

    Idempotent and thread-safe: later calls do nothing, concurrent calls wait for the first.
    An error is raised at every call. Until it has run, the hook keeps alive everything that
    the operation uses.
    """

    __slots__ = ("__weakref__", "_pending")

    def __init__(self, pending: Finishable) -> None:
        self._pending: Finishable | None = pending

    def __call__(self) -> None:
        pending = self._pending
        if pending is not None:
            pending.finish()
            self._pending = None


@opaque_methods
class Event:
    """The end of one operation. Waiting blocks the calling thread; Ctrl-C is handled."""

    __slots__ = ("_hook",)

    def __init__(self, pending: Finishable) -> None:
        self._hook = Hook(pending)

    def current_stream_wait(self) -> None:
        """Returns when the operation's results are complete.

        Raises:
            MoewireError: the error of the operation.
        """
        self._hook()


@opaque_methods
class StreamEvent(Event):
    """A point of a stream. Waiting blocks the current stream, not the calling thread."""

    __slots__ = ("_event", "_outputs", "_place", "_stream")

    def __init__(self, place: Place, stream: object, outputs: tuple[torch.Tensor, ...]) -> None:
        self._place = place
        self._stream = stream
        self._event = place.record(stream)
        self._outputs = outputs

    def move_behind(self, *used: torch.Tensor) -> None:
        """Moves it to the present end of its stream.

        Args:
            used: tensors that work uses which came to the stream since; kept until then.
        """
        for tensor in used:
            self._place.keep(tensor, self._stream)
        self._event = self._place.record(self._stream)

    def current_stream_wait(self) -> None:
        """Lets later work of the current stream wait for the results."""
        stream = self._place.stream()
        self._place.wait(stream, self._event)
        for tensor in self._outputs:  # which this stream uses from now on
            self._place.keep(tensor, stream)


@opaque_methods
class EventOverlap:
    """What dispatch and combine return as ``event``; a context manager that waits at its end.

    Args:
        event: None unless the call was made with ``async_finish=True``.
        extra_tensors: kept alive as long as this object.
    """

    hook_after_wait: Callable[[], object] | None = None
    _releases = False

    def __init__(
        self,
        event: Event | None = None,
        extra_tensors: tuple[torch.Tensor, ...] | None = None,
    ) -> None:
        self.event = event
        self.extra_tensors = extra_tensors

    def current_stream_wait(self, release_handle: bool = False) -> None:
        """Waits for the operation, and then calls the hook, if one is registered.

        Args:
            release_handle: sets ``event`` to None, which drops what it keeps alive.

        Raises:
            NoEventError: ``event`` is None.
            MoewireError: the error of the operation.
        """
        if self.event is None:
            raise NoEventError("event: None given, because async_finish was False")
        self.event.current_stream_wait()
        hook, self.hook_after_wait = self.hook_after_wait, None
        if hook is not None:
            hook()
        if release_handle:
            self.event = None

    def register_hook_after_wait(self, hook_after_wait: Callable[[], object]) -> None:
        """Lets the next wait call a function, once.

        Args:
            hook_after_wait: the function, without arguments.

        Raises:
            InvalidArgument: one is registered already.
        """
        if self.hook_after_wait is not None:
            raise check.refuse("hook_after_wait", "a second one", "one at a time")
        self.hook_after_wait = hook_after_wait

    def __call__(self, release_handle: bool = False) -> EventOverlap:
        """Says how the context that is about to begin ends.

        Args:
            release_handle: as for ``current_stream_wait``.

        Returns:
            This object, for ``with``.
        """
        self._releases = release_handle
        return self

    def __enter__(self) -> EventOverlap:
        return self

    def __exit__(self, *exception: object) -> None:
        releases, self._releases = self._releases, False
        if self.event is not None:
            self.current_stream_wait(releases)


class How(NamedTuple):
    """How a call ends; at most one of them."""

    async_finish: bool
    return_recv_hook: bool


AT_ONCE = How(False, False)
_BY_EVENT = How(True, False)
_BY_HOOK = How(False, True)


def how(async_finish: bool, return_recv_hook: bool) -> How:
    """How a call ends.

    Args:
        async_finish: whether the call returns an event.
        return_recv_hook: whether the call returns a hook.

    Returns:
        One of three objects, always the same ones.

    Raises:
        InvalidArgument: a value is not a bool, or both are True.
    """
    if async_finish is False and return_recv_hook is False:
        return AT_ONCE
    event = check.boolean("async_finish", async_finish)
    hook = check.boolean("return_recv_hook", return_recv_hook)
    check.not_both(event, hook)
    return _BY_HOOK if hook else _BY_EVENT if event else AT_ONCE


def completion(
    pending: Finishable, how: How, tensors: tuple[torch.Tensor, ...]
) -> tuple[EventOverlap, Hook | None]:
    """The event and the hook that a call returns."""
    if how is AT_ONCE:
        return EventOverlap(), None
    event = EventOverlap(Event(pending), tensors) if how.async_finish else EventOverlap()
    return event, Hook(pending) if how.return_recv_hook else None
