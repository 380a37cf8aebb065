"""One operation in flight: drives it, and holds what the library borrows until it has ended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

from .. import _abi as abi
from .._native.plan import SLICE_US
from .._native.runtime import Runtime
from ..errors import CancelledError, MoewireError

_INTERRUPTED_TEXT = "the operation was interrupted, and is cancelled"


class Operation:
    """Started once, finished once, by any thread. Dropped unfinished, it is cancelled."""

    __slots__ = ("_borrowed", "_ended", "_failure", "_id", "_lock", "_on_done", "_runtime")

    def __init__(self, runtime: Runtime, op: abi.mw_op_t, borrowed: tuple[object, ...]) -> None:
        self._runtime = runtime
        self._borrowed = borrowed
        self._id = op
        # The waiting thread may enter again: in a signal handler, or as a handle is collected.
        self._lock = threading.RLock()
        self._ended = False
        self._failure: MoewireError | None = None
        self._on_done: tuple[Callable[[], None], ...] = ()

    @property
    def ended(self) -> bool:
        """Whether nothing is in flight any more."""
        return self._ended

    def when_done(self, callback: Callable[[], None]) -> None:
        """Runs it when the results are complete, before callers know; never after a failure."""
        with self._lock:
            if not self._ended:
                self._on_done += (callback,)
                return
        if self._failure is None:
            callback()

    def go_on(self, status: int, function: Callable[..., int], args: Any, phase: int) -> None:
        """From the ``status`` of the first call to ``phase``, in slices; ends on any error."""
        try:
            while status == abi.MW_IN_PROGRESS and not self._id.id:
                # In progress without an operation: something else has to end first.
                status = function(self._runtime.id, args, self._id)
            self._drive(status, phase)
        except BaseException as error:
            self._fail(error)
            raise
        if phase == abi.MW_PHASE_DONE or not self._id.id:
            self._end()

    def finish(self) -> None:
        """Drives the operation to its end. Idempotent; an error is raised at every call."""
        if self._ended and self._failure is None:
            return
        with self._lock:
            if self._failure is not None:
                raise type(self._failure)(*self._failure.args)
            if not self._ended:
                self._finish()

    def abandon(self) -> None:
        """Cancels the operation, unless it has ended."""
        if self._ended or self._runtime.lib.forked:
            return
        self._runtime.lib.op_cancel(self._id)  # wakes a thread that waits in finish()
        with self._lock:
            if not self._ended:
                self._fail(CancelledError("the operation was given up"))

    def _finish(self) -> None:
        try:
            self._drive(abi.MW_IN_PROGRESS, abi.MW_PHASE_DONE)
        except BaseException as error:
            if not self._ended:
                self._fail(error)
            raise
        if self._failure is not None:  # this thread gave it up meanwhile
            raise type(self._failure)(*self._failure.args)
        self._end()

    def _drive(self, status: int, phase: int) -> None:
        look = self._runtime.events.look
        while status == abi.MW_IN_PROGRESS:
            look()
            status = self._runtime.lib.op_wait(self._id, phase, SLICE_US)
        # Before ``look``, which may fail, too.
        failure = self._runtime.error(status) if status < 0 else None
        look()
        if failure is not None:
            raise failure

    def _end(self) -> None:
        for callback in self._on_done:
            callback()
        self._free()

    def _fail(self, error: BaseException) -> None:
        known = isinstance(error, MoewireError)
        self._failure = error if known else CancelledError(_INTERRUPTED_TEXT)  # type: ignore[assignment]
        self._free()

    def _free(self) -> None:
        self._ended = True
        self._on_done = ()
        if self._id.id and not self._runtime.lib.forked:
            self._runtime.lib.op_close(self._id)
        self._borrowed = ()

    def __del__(self) -> None:
        if not getattr(self, "_ended", True):
            self._free()


def _ended_one() -> Operation:
    operation = Operation(cast(Runtime, None), abi.mw_op_t(), ())
    operation._ended = True
    return operation


# Looked up once, not at every call.
_new_op, _OK = abi.mw_op_t, abi.MW_OK
# Shared by all calls that were complete when they returned: nothing is left to finish.
_ENDED = _ended_one()


def start(
    runtime: Runtime,
    function: Callable[..., int],
    args: Any,
    phase: int,
    borrowed: tuple[object, ...],
) -> Operation:
    """Starts an operation and drives it to ``phase``; raises if that fails."""
    op = _new_op()
    try:
        status = function(runtime.id, args, op)
        if status == _OK and not op.id:
            runtime.events.look()
            return _ENDED
        operation = Operation(runtime, op, borrowed)
    except BaseException:
        if op.id:
            runtime.lib.op_close(op)
        raise
    operation.go_on(status, function, args, phase)
    return operation
