"""Requests to the store that are under way, and those that wait to be taken. No call waits."""

from __future__ import annotations

import logging
import select
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from ....errors import WouldBlockError
from ._client import Completion, StoreClient
from ._counts import Counts

MAX_KEYS = 512  # of one request
# Deadlines of the client, until a request of each kind that it has not taken is given up.
_NUM_TIMEOUTS = (4, 4, 40)
# Seconds without an end of any request of a kind: the client has broken its word.
_STUCK = 60.0

_log = logging.getLogger("moewire")


class Kind(IntEnum):
    """What is asked. A request waits for a text, so the first ones go first."""

    EXISTS = 0
    GET = 1
    PUT = 2


@dataclass
class Answer:
    """In the order of the keys. Without an ``error`` the store has answered for each of them."""

    ok: Sequence[bool]
    lengths: Sequence[int]
    error: str | None


@dataclass
class Request:
    """Its ``then`` is called once, from ``poll``."""

    kind: Kind
    keys: list[bytes]
    then: Callable[[Answer], None]
    buffers: list[memoryview] = field(default_factory=list)
    asked: float = 0.0  # when


class Requests:
    """Owns the client. Calls come from one thread, or from several under one lock."""

    def __init__(
        self, client: StoreClient, timeout: float, clock: Callable[[], float], counts: Counts
    ) -> None:
        self._client: StoreClient | None = client
        self._clock = clock
        self._counts = counts
        self._give_up_after = [n * timeout for n in _NUM_TIMEOUTS]
        self._stuck = max(_STUCK, 20 * timeout)
        self._moved = [0.0 for _ in Kind]  # when a request ended, or was the only one
        self._waiting: tuple[deque[Request], ...] = tuple(deque() for _ in Kind)
        self._taken: dict[int, Request] = {}
        self._last_error = ""

    @property
    def open(self) -> bool:
        """Whether there is a client still."""
        return self._client is not None

    def ask(self, request: Request) -> None:
        """Sends it, or lets it wait its turn."""
        request.asked = self._clock()
        self._waiting[request.kind].append(request)

    def poll(self) -> None:
        """Gives the answers that came to those that asked, and sends what waits."""
        if self._client is None:
            self._fail_all("the store's client is closed")
            return
        now = self._clock()
        for completion in self._client.drain():
            self._answer(completion, now)
        if any(now - self._moved[one.kind] > self._stuck for one in self._taken.values()):
            self._give_up()
            return
        for waiting in self._waiting:
            self._send(waiting, now)

    def drain(self, seconds: float) -> None:
        """Waits until all have ended, at most so long."""
        end = self._clock() + seconds
        self.poll()
        while not self.idle() and self._clock() < end:
            self._wait(0.05 if self._taken else 0.005)
            self.poll()

    def _wait(self, seconds: float) -> None:
        if self._taken and self._client is not None:
            select.select([self._client.event_fd()], [], [], seconds)
        else:
            time.sleep(seconds)  # the client may have room then

    def idle(self) -> bool:
        """Whether no request is under way or waits."""
        return not self._taken and not any(self._waiting)

    def close(self) -> None:
        """Closes the client; what is under way fails. Idempotent."""
        client, self._client = self._client, None
        if client is not None:
            client.close()
        self._fail_all("the store's client was closed")

    def _answer(self, completion: Completion, now: float) -> None:
        request = self._taken.pop(completion.id, None)
        if request is None:
            return
        self._moved[request.kind] = now
        n, given = len(request.keys), len(completion.ok)
        lengths = completion.lengths if request.kind is Kind.GET else [0] * n
        if (given, len(lengths)) == (n, n):
            self._end(request, Answer(completion.ok, lengths, completion.error))
        else:
            why = completion.error or f"{given} answers for {n} keys"
            self._end(request, _failed(request, why))

    def _send(self, waiting: deque[Request], now: float) -> None:
        while waiting:
            request = waiting[0]
            try:
                number = self._submit(request)
            except WouldBlockError:
                self._counts.would_block += 1
                self._end_late(waiting, now)
                return
            except Exception as error:
                waiting.popleft()
                self._end(request, _failed(request, repr(error)))
                continue
            waiting.popleft()
            if not any(one.kind is request.kind for one in self._taken.values()):
                self._moved[request.kind] = now
            self._taken[number] = request

    def _end_late(self, waiting: deque[Request], now: float) -> None:
        while waiting and now - waiting[0].asked > self._give_up_after[waiting[0].kind]:
            request = waiting.popleft()
            self._end(request, _failed(request, "the client took no request in time"))

    def _submit(self, request: Request) -> int:
        assert self._client is not None
        if request.kind is Kind.EXISTS:
            return self._client.submit_exists(request.keys)
        if request.kind is Kind.GET:
            return self._client.submit_get(request.keys, request.buffers)
        return self._client.submit_put(request.keys, request.buffers)

    def _end(self, request: Request, answer: Answer) -> None:
        if answer.error is not None and answer.error != self._last_error:
            self._last_error = answer.error  # once, not for each request
            _log.warning("the store does not serve vLLM: %s", answer.error)
        elif answer.error is None:
            self._last_error = ""
        request.then(answer)

    def _give_up(self) -> None:
        _log.error(
            "the store's client has not ended a request within %.0f s: it is closed, and nothing "
            "is loaded or stored from now on",
            self._stuck,
        )
        self.close()

    def _fail_all(self, why: str) -> None:
        left = [*self._taken.values(), *(one for waiting in self._waiting for one in waiting)]
        self._taken.clear()
        for waiting in self._waiting:
            waiting.clear()
        for request in left:
            self._end(request, _failed(request, why))


def _failed(request: Request, why: str) -> Answer:
    n = len(request.keys)
    return Answer([False] * n, [-1] * n, why)
