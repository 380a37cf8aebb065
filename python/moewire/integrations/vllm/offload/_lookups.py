"""Which blocks the store has, as far as requests have asked. No call waits.

A lookup is kept while a request that asked for it runs: vLLM asks again in every step. What is
asked in one step goes to the store at its end, together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from ._counts import Counts
from ._requests import MAX_KEYS, Answer, Kind, Request, Requests

_NUM_TIMEOUTS = 8  # deadlines of the client, until a block without an answer is a miss


@dataclass(eq=False)
class _Lookup:
    key: bytes
    asked: float
    found: bool | None = None  # None: not known yet
    users: set[str] = field(default_factory=set)


class Lookups:
    """Calls come from one thread, or from several under one lock."""

    def __init__(
        self, requests: Requests, timeout: float, clock: Callable[[], float], counts: Counts
    ) -> None:
        self._requests = requests
        self._give_up_after = _NUM_TIMEOUTS * timeout
        self._clock = clock
        self._counts = counts
        self._lookups: dict[bytes, _Lookup] = {}
        self._keys_of: dict[str, set[bytes]] = {}
        self._new: list[_Lookup] = []

    def of(self, key: bytes, user: str) -> bool | None:
        """Whether the store has the block; None: ask again later."""
        now = self._clock()
        lookup = self._lookups.get(key)
        if lookup is None:
            lookup = self._lookups[key] = _Lookup(key, now)
            self._new.append(lookup)
            self._counts.lookup_blocks += 1
        lookup.users.add(user)
        self._keys_of.setdefault(user, set()).add(key)
        if lookup.found is None and now - lookup.asked > self._give_up_after:
            lookup.found = False
            self._counts.lookup_failures += 1
        return lookup.found

    def flush(self) -> None:
        """Asks the store for what is new, in the order of the calls."""
        asked = [one for one in self._new if one.users and one.found is None]
        self._new = []
        for first in range(0, len(asked), MAX_KEYS):
            self._ask(asked[first : first + MAX_KEYS])

    def mark_miss(self, keys: Collection[bytes]) -> None:
        """Blocks that could not be loaded: else vLLM would try again for ever."""
        for key in keys:
            if key in self._lookups:
                self._lookups[key].found = False

    def forget(self, user: str) -> None:
        """The request is over. An answer that comes later is dropped."""
        for key in self._keys_of.pop(user, ()):
            lookup = self._lookups[key]
            lookup.users.discard(user)
            if not lookup.users:
                del self._lookups[key]

    def _ask(self, asked: list[_Lookup]) -> None:
        def then(answer: Answer) -> None:
            failed = answer.error is not None
            for lookup, ok in zip(asked, answer.ok, strict=True):
                if lookup.found is None:
                    lookup.found = bool(ok)
                    self._counts.lookup_hits += lookup.found
                    self._counts.lookup_failures += failed and not lookup.found

        keys = [lookup.key for lookup in asked]
        self._requests.ask(Request(Kind.EXISTS, keys, then))
