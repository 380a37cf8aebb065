"""Calls of a store that end by a deadline, whatever happens to the store's server.

torch's stores have timeouts of their own, but none that holds. When the server's process is
stopped, a ``get`` or ``wait`` of a ``TCPStore`` notices that its timeout has passed. It then tells
the server that it does not wait any more, and waits for the answer to that for ever. ``add``,
``check``, ``compare_set`` and ``delete_key`` have no timeout at all. So each call is made in a
thread that the waiter can leave. Such a thread ends when its call does. Until then no other call of
that store begins, so there is one such thread per store and waiting caller.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from ..errors import DeadlineError
from .clock import Clock

# The time of a call that begins at the deadline or later: to undo, or to say why.
_GRACE_S = 0.05


class Store(Protocol):
    """The part of ``torch.distributed.Store`` that is used."""

    def add(self, key: str, amount: int, /) -> int: ...
    def set(self, key: str, value: bytes, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def check(self, keys: list[str], /) -> bool: ...
    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes: ...
    def delete_key(self, key: str, /) -> bool: ...


METHODS = ("add", "set", "get", "check", "compare_set", "delete_key")

Call = Callable[[], Any]


class UnansweredError(DeadlineError):
    """The store has not answered in time."""


class _Task:
    def __init__(self, call: Call) -> None:
        self.call = call
        self.done = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self.call()
        except BaseException as error:
            self.error = error
        self.done.set()


class _Caller:
    """A thread that makes the calls of one waiter."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self.ended = threading.Event()
        threading.Thread(target=self._run, name="moewire store", daemon=True).start()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            task.run()
            del task  # the call may hold the last reference to a buffer
        self.ended.set()

    def begin(self, call: Call) -> _Task:
        task = _Task(call)
        self._tasks.put(task)
        return task

    def end(self) -> None:
        """Lets the thread end once it has made all calls."""
        self._tasks.put(None)


# Callers that were left in a call, by the id of their store, which their thread keeps alive.
_left: dict[int, list[_Caller]] = {}
_left_lock = threading.Lock()


class BoundedStore:
    """The store of one rank's rendezvous. Between ``until`` and its end, calls have a deadline.

    One thread uses it at a time. A call that is not answered by then raises ``DeadlineError``,
    which names the store. Later calls are refused in the same way, except ``undo``.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._clock = Clock(-1)
        self._caller: _Caller | None = None
        self._argument = ""
        self._stuck = False

    @contextlib.contextmanager
    def until(self, clock: Clock, argument: str) -> Iterator[None]:
        """Makes the calls inside end by the clock; ``argument`` names the source of its time."""
        self._clock, self._argument, self._stuck = clock, argument, False
        self._await_those_left()
        self._caller = caller = _Caller()
        try:
            yield
        finally:
            self._caller = None
            caller.end()
            # Nothing is left to do, or something to undo, or a call hangs.
            if not caller.ended.wait(min(_GRACE_S, self._left_s() or _GRACE_S)):
                with _left_lock:
                    _left.setdefault(id(self._store), []).append(caller)

    def _await_those_left(self) -> None:
        """Waits for earlier calls: they may still change the store."""
        with _left_lock:
            callers = list(_left.get(id(self._store), ()))
        for caller in callers:
            if not caller.ended.wait(self._left_s()):
                raise self._late("an earlier call")
        with _left_lock:
            rest = [one for one in _left.pop(id(self._store), ()) if one not in callers]
            if rest:
                _left[id(self._store)] = rest

    def _left_s(self) -> float | None:
        """The time for a call that begins now, in seconds."""
        left_us = self._clock.left_us()
        if left_us < 0:
            return None
        over = self._clock.over_s()
        left_s = max(left_us / 1e6, min(_GRACE_S, 1.6 * _GRACE_S - over), 0.0)
        return min(left_s, threading.TIMEOUT_MAX)

    def _call(self, name: str, *args: Any) -> Any:
        if self._stuck:
            raise self._late(f"'{name}'")
        if self._caller is None:
            return getattr(self._store, name)(*args)
        task = self._caller.begin(lambda: getattr(self._store, name)(*args))
        if not task.done.wait(self._left_s()):
            self._stuck = True
            raise self._late(f"'{name}'")
        if task.error is not None:
            raise task.error
        return task.result

    def _late(self, what: str) -> UnansweredError:
        return UnansweredError(
            f"the store ({describe(self._store)}) has not answered {what} within the "
            f"{self._clock.timeout_us / 1e6:g} s of {self._argument}: "
            "is the process that serves it alive?"
        )

    def undo(self, *calls: Call) -> None:
        """Makes calls without waiting for them: after the calls that still run, in their order."""
        if self._caller is None:
            for call in calls:
                call()
            return
        for call in calls:
            self._caller.begin(call)

    @property
    def unguarded(self) -> Store:
        """The store itself, for ``undo``."""
        return self._store

    def add(self, key: str, amount: int) -> int:
        return int(self._call("add", key, amount))

    def set(self, key: str, value: bytes) -> None:
        self._call("set", key, value)

    def get(self, key: str) -> bytes:
        return bytes(self._call("get", key))

    def check(self, keys: list[str]) -> bool:
        return bool(self._call("check", keys))

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        return bytes(self._call("compare_set", key, expected, desired))


def describe(store: Any) -> str:
    """Which store it is, without asking its server."""
    name = type(store).__name__
    with contextlib.suppress(Exception):  # a store of another kind may raise anything
        if (inner := getattr(store, "underlying_store", None)) is not None:
            return describe(inner)
        if (host := getattr(store, "host", None)) is not None:
            return f"{name} at {host}:{store.port}"
        if (path := getattr(store, "path", None)) is not None:
            return f"{name} in {path}"
    return name
