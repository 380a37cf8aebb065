"""How ranks meet in a store, for the first time and for every change of the membership.

No collective: a rank that has died holds up nobody beyond a deadline. Round 0 of an instance
is its construction; later rounds are updates. In each round a rank leaves its bytes, one set of
ranks is agreed on (the first proposal wins), they connect, and the epoch begins only if every
one of them has said that it did.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from . import _abi as abi
from ._check import integer, refuse
from ._runtime import Runtime
from .errors import DeadlineError, MetadataError, MoewireError

_SHORTEST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.02
# A rank that has connected says so at once; one that does not has died meanwhile.
_VOTE_S = 5.0
_CONNECT_US = 10_000_000
# A rank that was there in an attempt that failed is soon there again, unless it has died.
_RETURN_S = 2.0

_PROCESS = secrets.token_hex(8)
_YES, _NO = b"yes", b"no"

_log = logging.getLogger("moewire")


class Store(Protocol):
    """What is used of ``torch.distributed.Store``."""

    def add(self, key: str, amount: int, /) -> int: ...
    def set(self, key: str, value: bytes, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def check(self, keys: list[str], /) -> bool: ...
    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes: ...
    def delete_key(self, key: str, /) -> bool: ...


_METHODS = ("add", "set", "get", "check", "compare_set", "delete_key")


class StoreMeeting:
    """The meetings of one rank under one prefix of a store.

    The n-th construction of a process under a prefix is instance n. A process whose rank was
    taken in round 0 already is a replacement: it joins the running instance. So is one that
    constructs once more while the others update the instance before.
    """

    def __init__(self, store: Store, rank: int, num_ranks: int, prefix: str) -> None:
        if not all(hasattr(store, name) for name in _METHODS):
            raise refuse("store", type(store).__name__, "a torch.distributed.Store")
        self.num_ranks = integer("world_size", num_ranks, 1, abi.MW_MAX_RANKS)
        self.rank = integer("rank", rank, 0, self.num_ranks - 1)
        if not isinstance(prefix, str) or not prefix:
            raise refuse("prefix", repr(prefix), "a string that is not empty")
        self._store = store
        self._prefix = prefix
        self._instance = 0
        self._round = 0

    # -- construction ------------------------------------------------------

    def construct(self, runtime: Runtime, members: frozenset[int], timeout_us: int) -> None:
        """Round 0, or the next update of an instance that is running already."""
        self._instance = self._store.add(f"{self._prefix}/made/{self.rank}/{_PROCESS}", 1)
        clock = Clock(timeout_us)
        free = self._store.add(self._key("taken", self.rank), 1) == 1
        if free and self._first(runtime, members, clock):
            return
        if free and not self._running():
            self._step_back()
            self._instance -= 1
        self._update(runtime, frozenset(range(self.num_ranks)), clock, joining=True)

    def _first(self, runtime: Runtime, members: frozenset[int], clock: Clock) -> bool:
        """False: there is a group already, which this rank is to join."""
        if self._running():
            return False
        self._store.set(self._at(self.rank), runtime.metadata())
        clock.wait(lambda: not self._missing(members) or self._running() or self._awaited())
        missing = self._missing(members)
        if missing and (self._running() or self._awaited()):
            return False
        if missing:
            self._step_back()
            raise DeadlineError(self._absence(missing, clock.timeout_us))
        # Should this fail, the key stays: others may need it to fail for the same reason.
        runtime.connect(self._gather(members), clock.left_us())
        self._store.set(self._key("end"), _YES)
        return True

    def _running(self) -> bool:
        """Whether round 0 has been, without this rank if this is asked in it."""
        return self._store.check([self._key_of_instance("0/end")])

    def _awaited(self) -> bool:
        """Whether the instance before has an update going on, without this rank."""
        if self._instance == 1:
            return False
        before = StoreMeeting(self._store, self.rank, self.num_ranks, self._prefix)
        before._instance = self._instance - 1
        before._catch_up()
        absent = before._missing(range(self.num_ranks))
        return self.rank in absent and len(absent) < self.num_ranks

    def _step_back(self) -> None:
        """Undoes the beginning of a construction."""
        self._store.delete_key(self._at(self.rank))
        self._store.add(self._key("taken", self.rank), -1)
        self._store.add(f"{self._prefix}/made/{self.rank}/{_PROCESS}", -1)

    def _absence(self, missing: Iterable[int], timeout_us: int) -> str:
        names = ", ".join(str(rank) for rank in sorted(missing))
        return (
            f"rank {self.rank} of {self.num_ranks} waited {timeout_us / 1e6:g} s for the others "
            f"to construct their Buffer under '{self._prefix}/{self._instance}'; "
            f"missing: rank {names}"
        )

    # -- updates -----------------------------------------------------------

    def update(self, runtime: Runtime, members: frozenset[int], timeout_us: int) -> None:
        """The next round, in which ``members`` are waited for as long as the time lasts."""
        self._update(runtime, members, Clock(timeout_us), joining=False)

    def _update(
        self, runtime: Runtime, members: frozenset[int], clock: Clock, joining: bool
    ) -> None:
        doubtful: frozenset[int] = frozenset()
        while True:
            self._catch_up()
            if not joining:
                runtime.update()
            present = self._agree(runtime, members, doubtful, clock, joining)
            if self.rank in present and self._connect(runtime, present, clock):
                return
            if self.rank not in present:  # the set was agreed on before this rank came
                clock.wait(lambda: self._store.check([self._key("end")]))
            if clock.over():
                raise DeadlineError(self._failure(present, clock.timeout_us))
            doubtful = present
            if joining:  # the bytes of an attempt are used up
                runtime.update()

    def _failure(self, present: frozenset[int], timeout_us: int) -> str:
        names = ", ".join(str(rank) for rank in sorted(present)) or "nobody"
        return (
            f"rank {self.rank} found no epoch to join in {timeout_us / 1e6:g} s "
            f"under '{self._prefix}/{self._instance}'; the last attempt was made by rank {names}"
        )

    def _catch_up(self) -> None:
        """Goes to the first round that has not ended."""
        last = self._key_of_instance("last")
        if self._store.check([last]):
            self._round = max(self._round, int(self._store.get(last)))
        self._round += self._round == 0
        while self._store.check([self._key("end")]):
            self._round += 1

    def _agree(
        self,
        runtime: Runtime,
        members: frozenset[int],
        doubtful: frozenset[int],
        clock: Clock,
        joining: bool,
    ) -> frozenset[int]:
        """Waits until the ranks are there, or the time is over; the first proposal wins."""
        self._store.set(self._at(self.rank), runtime.metadata())
        returning = Clock(int(_RETURN_S * 1e6))

        def ready() -> bool:
            missing = self._missing(members)
            if doubtful and returning.over():
                missing -= doubtful
            return not missing or self._store.check([self._key("set")])

        in_time = clock.wait(ready)
        come = sorted(set(range(self.num_ranks)) - self._missing(range(self.num_ranks)))
        if not in_time and not self._store.check([self._key("set")]):
            self._refuse_few(runtime, come, clock, joining)
        agreed = self._decide("set", ",".join(map(str, come)))
        return frozenset(int(rank) for rank in agreed.split(","))

    def _refuse_few(self, runtime: Runtime, come: list[int], clock: Clock, joining: bool) -> None:
        """Those who have come too few do not end the epoch of those who go on without them."""
        running = 0 if joining else runtime.members().ranks
        absent = sum(
            1 for rank in range(self.num_ranks) if running >> rank & 1 and rank not in come
        )
        if joining or absent > len(come):
            self._store.delete_key(self._at(self.rank))
            raise DeadlineError(self._failure(frozenset(come), clock.timeout_us))

    def _connect(self, runtime: Runtime, present: frozenset[int], clock: Clock) -> bool:
        """Connects and begins the epoch, if everybody could. False: another attempt."""
        try:
            runtime.connect(self._gather(present), self._connect_us(clock))
        except MoewireError as error:
            _log.info("rank %d could not connect in round %d: %s", self.rank, self._round, error)
            self._decide("end", _NO.decode())
            return False
        self._store.set(self._key("voted", self.rank), _YES)
        votes = [self._key("voted", rank) for rank in present]
        all_voted = Clock(int(_VOTE_S * 1e6)).wait(
            lambda: self._store.check(votes) or self._store.check([self._key("end")])
        )
        everybody = all_voted and self._store.check(votes)
        if self._decide("end", (_YES if everybody else _NO).decode()) != _YES.decode():
            return False
        runtime.install()
        self._store.set(self._key_of_instance("last"), str(self._round).encode())
        return True

    @staticmethod
    def _connect_us(clock: Clock) -> int:
        # They were all there a moment ago: one that does not connect soon has died.
        left = clock.left_us()
        return _CONNECT_US if left < 0 else min(max(left, 1_000_000), _CONNECT_US)

    # -- the store ---------------------------------------------------------

    def _key_of_instance(self, name: str) -> str:
        return f"{self._prefix}/{self._instance}/{name}"

    def _key(self, name: str, rank: int | None = None) -> str:
        key = self._key_of_instance(f"{self._round}/{name}")
        return key if rank is None else f"{key}/{rank}"

    def _at(self, rank: int) -> str:
        return self._key("at", rank)

    def _missing(self, ranks: Iterable[int]) -> set[int]:
        return {rank for rank in ranks if not self._store.check([self._at(rank)])}

    def _gather(self, present: Iterable[int]) -> list[bytes]:
        """Everybody's bytes by rank; nothing for those who are absent."""
        everybody = [b""] * self.num_ranks
        for rank in present:
            everybody[rank] = bytes(self._store.get(self._at(rank)))
            if not everybody[rank]:
                raise MetadataError(f"rank {rank} has left no metadata in the store")
        return everybody

    def _decide(self, name: str, value: str) -> str:
        """Proposes a value for a key of this round, and returns the one that stands."""
        return bytes(self._store.compare_set(self._key(name), "", value)).decode()


class Clock:
    """A deadline for polling: it can be interrupted, unlike a store's own waits."""

    def __init__(self, timeout_us: int) -> None:
        self.timeout_us = timeout_us
        self._until = None if timeout_us < 0 else time.monotonic() + timeout_us / 1e6

    def over(self) -> bool:
        """Whether the time has passed."""
        return self._until is not None and time.monotonic() > self._until

    def left_us(self) -> int:
        """What is left of it, at least 1; -1 for no deadline."""
        if self._until is None:
            return -1
        return max(1, int((self._until - time.monotonic()) * 1e6))

    def wait(self, done: Callable[[], bool]) -> bool:
        """Polls until it is done (True) or the time is over (False)."""
        pause = _SHORTEST_PAUSE_S
        while not done():
            if self.over():
                return False
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        return True
