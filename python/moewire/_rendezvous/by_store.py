"""How ranks meet in a store, for the first time and for every update of the membership.

This is no collective: a dead rank delays the others by no more than a deadline. Round 0 of an
instance is its construction; later rounds are updates. In each round a rank leaves its bytes, the
ranks agree on one set of ranks (the first proposal wins), and these connect. The epoch begins only
if every one of them has said that it has connected.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Iterable

from .._base.check import integer, limited, refuse
from .._native.runtime import Runtime
from ..errors import DeadlineError, MetadataError, MoewireError
from .clock import Clock
from .store import METHODS, BoundedStore, Store, UnansweredError

# A rank that has connected says so at once; one that does not has died meanwhile.
_VOTE_US = 5_000_000
_CONNECT_US = 10_000_000
_LEAST_US = 20_000
# The part of an update's time that is kept for connecting: half of it, at most this long.
_CONNECT_SHARE, _CONNECT_S = 0.5, 2.0
# A rank that came to an attempt that failed soon comes again, unless it has died.
_RETURN_S = 2.0

_PROCESS = secrets.token_hex(8)
_YES, _NO = b"yes", b"no"
_ABSENT = "-"  # no value that ranks write is equal to it
# How long a rank that could not connect waits for the reasons of others, and their length.
_REASONS_US, _REASON_BYTES = 100_000, 400
# The words of a rank that has failed because another rank did.
_OF_OTHERS = ("gave up connecting", "does not listen", "closed the connection")

_log = logging.getLogger("moewire")


class StoreRendezvous:
    """The rendezvous of one rank under one prefix of a store.

    The n-th construction of a process under a prefix is instance n. If another process took the
    same rank in round 0, the new one is a replacement: it joins the running instance. So is a
    process that constructs once more while the others update the instance before.
    """

    def __init__(self, store: Store, rank: int, num_ranks: int, prefix: str) -> None:
        if not all(hasattr(store, name) for name in METHODS):
            raise refuse("store", type(store).__name__, "a torch.distributed.Store")
        self.num_ranks = limited("world_size", num_ranks, "num_ranks")
        self.rank = integer("rank", rank, 0, self.num_ranks - 1)
        if not isinstance(prefix, str) or not prefix:
            raise refuse("prefix", repr(prefix), "a string that is not empty")
        self._store = BoundedStore(store)
        self._prefix = prefix
        self._instance = 0
        self._round = 0
        self._failed: MoewireError | None = None  # of the last attempt

    # -- construction ------------------------------------------------------

    def construct(self, runtime: Runtime, members: frozenset[int], timeout_us: int) -> None:
        """Round 0, or the next update of an instance that is running already."""
        clock = Clock(timeout_us)
        with self._store.until(clock, "connect_timeout_us"):
            self._construct(runtime, members, clock)

    def _construct(self, runtime: Runtime, members: frozenset[int], clock: Clock) -> None:
        self._instance = 0
        made = f"{self._prefix}/made/{self.rank}/{_PROCESS}"
        try:
            self._instance = self._store.add(made, 1)
            free = self._store.add(self._key("taken", self.rank), 1) == 1
            if free and self._first(runtime, members, clock):
                return
            if free and not self._running():
                self._step_back()
                self._instance -= 1
        except UnansweredError:
            self._step_back()  # in case the store answers later
            raise
        self._update(runtime, frozenset(range(self.num_ranks)), clock, joining=True)

    def _first(self, runtime: Runtime, members: frozenset[int], clock: Clock) -> bool:
        """False: there is a group already, which this rank is to join."""
        if self._running() or not self._gathered(runtime, members, clock):
            return False
        # If this fails, the key stays, so that other ranks fail for the same reason.
        try:
            runtime.connect(self._gather(members), clock.left_us())
        except MoewireError as error:
            raise self._with_reasons(error, members, clock) from None
        self._store.set(self._key("end"), _YES)
        return True

    def _gathered(self, runtime: Runtime, members: frozenset[int], clock: Clock) -> bool:
        """Waits until ``members`` are there. False: there is a group already."""
        self._store.set(self._at(self.rank), runtime.metadata())
        missing: set[int] = set()
        running = False

        def ready() -> bool:
            nonlocal missing, running
            missing = self._missing(members)
            running = bool(missing) and (self._running() or self._awaited())
            return not missing or running

        try:
            in_time = clock.wait(ready)
        except UnansweredError as error:
            known = f"; {self._absence(missing, clock.timeout_us)}" if missing else ""
            raise UnansweredError(f"{error}{known}") from None
        if not in_time:
            self._step_back()
            raise DeadlineError(self._absence(missing, clock.timeout_us))
        return not running

    def _with_reasons(
        self, error: MoewireError, members: frozenset[int], clock: Clock
    ) -> MoewireError:
        """Why this rank could not connect, with the reason of another rank that could not."""
        said: dict[int, str] = {}
        left = clock.left_us()
        limit = Clock(_REASONS_US if left < 0 else min(left, _REASONS_US))

        def heard() -> bool:
            for rank in members - {self.rank} - said.keys():
                if self._store.check([self._key("why", rank)]):
                    said[rank] = self._read(self._key("why", rank)).decode(errors="replace")
            return bool(said)

        # Errors here are ignored: a store that died with a rank does not answer any more.
        with contextlib.suppress(Exception):
            self._store.set(self._key("why", self.rank), str(error).encode()[:_REASON_BYTES])
            limit.wait(heard)
        own = [text for text in said.values() if not any(word in text for word in _OF_OTHERS)]
        if not own or own[0] in str(error):
            return error
        rank = next(rank for rank, text in said.items() if text == own[0])
        return type(error)(f"{error}; rank {rank} says: {own[0]}")

    def _running(self) -> bool:
        """Whether round 0 has ended; asked during round 0: without this rank."""
        return self._store.check([self._key_of_instance("0/end")])

    def _awaited(self) -> bool:
        """Whether the instance before has an update going on, without this rank."""
        if self._instance == 1:
            return False
        before = StoreRendezvous(self._store.unguarded, self.rank, self.num_ranks, self._prefix)
        before._store = self._store
        before._instance = self._instance - 1
        before._catch_up()
        absent = before._missing(range(self.num_ranks))
        return self.rank in absent and len(absent) < self.num_ranks

    def _step_back(self) -> None:
        """Undoes the beginning of a construction, as far as it has come."""
        at, taken = self._at(self.rank), self._key("taken", self.rank)
        made = f"{self._prefix}/made/{self.rank}/{_PROCESS}"
        unguarded = self._store.unguarded
        if self._instance:
            self._store.undo(lambda: unguarded.delete_key(at), lambda: unguarded.add(taken, -1))
        self._store.undo(lambda: unguarded.add(made, -1))

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
        clock = Clock(timeout_us)
        with self._store.until(clock, "timeout_us"):
            self._update(runtime, members, clock, joining=False)

    def _update(
        self, runtime: Runtime, members: frozenset[int], clock: Clock, joining: bool
    ) -> None:
        self._failed = None
        try:
            self._attempts(runtime, members, clock, joining)
        except UnansweredError:
            at, unguarded = self._at(self.rank), self._store.unguarded
            self._store.undo(lambda: unguarded.delete_key(at))  # this rank will not come
            raise

    def _attempts(
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
            if self.rank not in present:  # the ranks agreed on the set before this rank came
                clock.wait(lambda: self._store.check([self._key("end")]))
            if clock.over():
                raise DeadlineError(self._failure(present, clock.timeout_us))
            doubtful = present
            if joining:  # the bytes of an attempt are used up
                runtime.update()

    def _failure(self, present: frozenset[int], timeout_us: int) -> str:
        names = ", ".join(str(rank) for rank in sorted(present)) or "none"
        why = "" if self._failed is None else f", and here it failed: {self._failed}"
        return (
            f"rank {self.rank} found no epoch to join in {timeout_us / 1e6:g} s "
            f"under '{self._prefix}/{self._instance}'; "
            f"ranks of the last attempt: {names}{why}"
        )

    def _catch_up(self) -> None:
        """Goes to the first round that has not ended."""
        last = self._key_of_instance("last")
        if self._store.check([last]):
            self._round = max(self._round, int(self._read(last)))
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

        # The rest of the time is for connecting with the ranks that have come.
        in_time = clock.before(_CONNECT_SHARE, _CONNECT_S).wait(ready)
        if not in_time and self._too_few(runtime, joining):
            in_time = clock.wait(ready)
        if not in_time and self._too_few(runtime, joining):
            at, unguarded = self._at(self.rank), self._store.unguarded
            self._store.undo(lambda: unguarded.delete_key(at))
            raise DeadlineError(self._failure(self._come(), clock.timeout_us))
        agreed = self._decide("set", ",".join(map(str, sorted(self._come()))))
        return frozenset(int(rank) for rank in agreed.split(","))

    def _come(self) -> frozenset[int]:
        everybody = frozenset(range(self.num_ranks))
        return everybody - self._missing(everybody)

    def _too_few(self, runtime: Runtime, joining: bool) -> bool:
        """Whether the ranks that have come are fewer than the members that go on without them."""
        if self._store.check([self._key("set")]):
            return False
        if joining:
            return True
        come, running = self._come(), runtime.members().ranks
        absent = [r for r in range(self.num_ranks) if running >> r & 1 and r not in come]
        return len(absent) > len(come)

    def _connect(self, runtime: Runtime, present: frozenset[int], clock: Clock) -> bool:
        """Connects and begins the epoch, if every rank could. False: another attempt."""
        try:
            runtime.connect(self._gather(present), self._connect_us(clock))
        except MoewireError as error:
            _log.info("rank %d could not connect in round %d: %s", self.rank, self._round, error)
            self._failed = error
            self._decide("end", _NO.decode())
            return False
        self._store.set(self._key("voted", self.rank), _YES)
        votes = [self._key("voted", rank) for rank in present]
        left = clock.left_us()
        all_voted = Clock(_VOTE_US if left < 0 else min(left, _VOTE_US)).wait(
            lambda: self._store.check(votes) or self._store.check([self._key("end")])
        )
        everybody = all_voted and self._store.check(votes)
        if self._decide("end", (_YES if everybody else _NO).decode()) != _YES.decode():
            return False
        runtime.install()
        # The epoch has begun, even if the store is late: each member writes the same number.
        last, unguarded = self._key_of_instance("last"), self._store.unguarded
        number = str(self._round).encode()
        self._store.undo(lambda: unguarded.set(last, number))
        return True

    @staticmethod
    def _connect_us(clock: Clock) -> int:
        # All ranks were there a moment ago: one that does not connect soon has died. Some
        # time is kept to tell the others.
        left = clock.left_us()
        return _CONNECT_US if left < 0 else min(max(left * 3 // 4, _LEAST_US), _CONNECT_US)

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
        """The bytes of every rank, by rank; empty for absent ranks."""
        everybody = [b""] * self.num_ranks
        for rank in present:
            everybody[rank] = self._read(self._at(rank))
            if not everybody[rank]:
                raise MetadataError(f"rank {rank} has left no metadata in the store")
        return everybody

    def _read(self, key: str) -> bytes:
        """The value of a key, or nothing. Unlike ``get`` this does not wait for a deleted key.

        A first rendezvous deletes no keys, and so needs only ``get`` of a store.
        """
        if self._round == 0:
            return bytes(self._store.get(key)) if self._store.check([key]) else b""
        found = self._store.compare_set(key, _ABSENT, _ABSENT)
        return b"" if found == _ABSENT.encode() else found

    def _decide(self, name: str, value: str) -> str:
        """Proposes a value for a key of this round, and returns the one that stands."""
        return bytes(self._store.compare_set(self._key(name), "", value)).decode()
