"""Collectives over routings on CUDA: the host leads them, in steps that the device runs."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from ctypes import Structure
from typing import Any

from .. import _abi as abi
from .._ep.engine import Engine
from ..errors import BusyError
from .streams import Streams

# How long the host leaves a step alone before it looks again, at first and at last: seconds.
_FIRST, _LAST = 20e-6, 1e-3


class Collectives:
    """The calls of ``moewire_routing.h`` of one buffer, one at a time.

    Each step is launched behind the last operation, as any other one. Between steps this thread
    holds no lock of ``streams``: a handle that another thread drops is released meanwhile.
    """

    def __init__(self, engine: Engine, streams: Streams) -> None:
        self._engine, self._streams = engine, streams
        self._turn = threading.Lock()

    def run(self, function: Callable[..., int], args: Any, borrowed: tuple[object, ...]) -> None:
        """Makes a call on the current stream, and returns at its end.

        Args:
            function: takes the buffer, ``args`` and an operation.
            args: of the call; its stream and its slice are set here.
            borrowed: what has to live until the end.
        """
        stream = self._engine.place.stream()
        args.stream, args.slice_us = self._engine.place.handle(stream), 0
        with self._turn:
            try:
                self._lead(stream, function, args)
            except BusyError:
                gc.collect()  # a handle that only a cycle of objects keeps is garbage
                self._lead(stream, function, args)
        del borrowed

    def _lead(self, stream: Any, function: Callable[..., int], args: Structure) -> None:
        engine, op, pause = self._engine, abi.mw_op_t(), _FIRST
        try:
            status = self._step(stream, function, engine.id, args, op)
            while status == abi.MW_IN_PROGRESS:
                engine.events.look()
                time.sleep(pause)
                pause = min(2 * pause, _LAST)
                if op.id:
                    status = self._step(stream, engine.lib.op_wait, op, abi.MW_PHASE_DONE, 0)
                else:  # something else has to end first
                    status = self._step(stream, function, engine.id, args, op)
            failure = engine.error(status) if status < 0 else None  # before events are looked at
            engine.events.look()
            if failure is not None:
                raise failure
        finally:
            if op.id and not engine.lib.forked:
                engine.lib.op_close(op)  # one that has not ended is cancelled

    def _step(self, stream: Any, call: Callable[..., int], *args: Any) -> int:
        with self._streams.lock:
            try:
                self._streams.begin(stream)
                return call(*args)
            finally:
                self._streams.end()
