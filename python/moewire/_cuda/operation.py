"""One operation on CUDA; its second phase may still have to be launched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _abi as abi
from .._native.runtime import Runtime
from ..errors import CancelledError, MoewireError, UnsupportedError
from .streams import Streams


class Launched:
    """An operation that any thread may finish once. That launches the rest, and does not wait.

    Dropped before, it is cancelled, and its handle is released.
    """

    __slots__ = (
        "_borrowed",
        "_ended",
        "_failure",
        "_id",
        "_on_done",
        "_recorded",
        "_runtime",
        "_stream",
        "_streams",
    )

    def __init__(
        self,
        runtime: Runtime,
        streams: Streams,
        stream: Any,
        captured: bool,
        op: abi.mw_op_t,
        borrowed: object,
    ) -> None:
        self._runtime, self._streams, self._stream = runtime, streams, stream
        self._id = op
        self._ended = not op.id
        self._failure: MoewireError | None = None
        self._borrowed = None if self._ended else borrowed
        self._on_done: tuple[Callable[[], None], ...] = ()
        self._recorded = captured

    @property
    def ended(self) -> bool:
        """Whether everything has been launched."""
        return self._ended

    def when_done(self, callback: Callable[[], None]) -> None:
        """Runs it after the operation, on its stream; never after a failure."""
        with self._streams.lock:
            if not self._ended:
                self._on_done += (callback,)
                return
        if self._failure is None:
            self._call(callback)

    def finish(self) -> None:
        """Launches what is left. Idempotent; an error is raised at every call.

        It refuses, and launches nothing, if the first phase ran and the second would be recorded.
        """
        with self._streams.lock:
            if not self._ended:
                self._refuse_half_a_graph()
                self._launch()
            if self._failure is not None:
                raise type(self._failure)(*self._failure.args)

    def _refuse_half_a_graph(self) -> None:
        if not self._recorded and self._streams.place.capturing(self._stream):
            raise UnsupportedError(
                "the stream is captured into a graph, and the second phase of what ran before must "
                "not be replayed: call its hook, or release its handle, before the capture"
            )

    def abandon(self) -> None:
        """Cancels the operation, unless all of it was launched. Its handle is released."""
        if self._ended or self._runtime.lib.forked:
            return
        with self._streams.lock:
            if self._streams.launching:
                self._streams.put_off(self.abandon)
            elif not self._ended:
                self._failure = CancelledError("the operation was given up")
                self._free()

    def _launch(self) -> None:
        try:
            self._streams.begin(self._stream)
            self._put_on_stream()
        finally:
            self._streams.end()

    def _put_on_stream(self) -> None:
        status = self._runtime.lib.op_wait(self._id, abi.MW_PHASE_DONE, 0)
        if status < 0:
            self._failure = self._runtime.error(status)
        callbacks = self._on_done
        self._free()
        if self._failure is None:
            self._follow(callbacks)

    def _follow(self, callbacks: tuple[Callable[[], None], ...]) -> None:
        try:
            for callback in callbacks:
                self._call(callback)
        except BaseException as error:
            text = f"what follows the operation was not launched: {error!r}"
            self._failure = CancelledError(text)
            raise

    def _call(self, callback: Callable[[], None]) -> None:
        with self._streams.place.on(self._stream):
            callback()

    def _free(self) -> None:
        self._ended = True
        self._on_done = ()
        if self._id.id and not self._runtime.lib.forked:
            self._runtime.lib.op_close(self._id)
        self._borrowed = None

    def __del__(self) -> None:
        if not getattr(self, "_ended", True):
            self._cancel()

    def _cancel(self) -> None:
        """Releases its handle on its stream, after the last operation."""
        if self._runtime.lib.forked:
            return  # the lock may be another thread's, which is not here
        with self._streams.lock:
            if self._streams.launching:
                self._streams.put_off(self._cancel)
                return
            try:
                if not self._runtime.closed:
                    self._streams.begin(self._stream)
            finally:
                self._free()
                self._streams.end()
