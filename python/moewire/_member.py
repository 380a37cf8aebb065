"""A buffer's life in its group: coming, updates of the membership, records, leaving."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from . import _abi as abi
from . import trace
from ._base import check
from ._base.numbers import switch
from ._base.opaque import opaque_methods
from ._config import tuning as _tuning
from ._config.device import refuse_unsized
from ._config.tuning import Tuning
from ._cpu.engine import Cpu
from ._cuda.engine import Cuda
from ._ep.engine import Engine
from ._observe import recorded

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._rendezvous.bootstrap import Rendezvous

CONNECT_TIMEOUT_US = 60_000_000
SLOW_AFTER_US = 1_000_000


class Options(NamedTuple):
    """The settings of a buffer, however its ranks meet; ``Buffer`` describes each."""

    num_slots: int = 2
    copy_outputs: bool = False
    vector_width: int = 0
    connect_timeout_us: int = CONNECT_TIMEOUT_US
    members: Sequence[int] | None = None
    deterministic: bool = False
    slow_after_us: int = SLOW_AFTER_US
    tuning: dict[str, int | bytes] | None = None  # fields of mw_config_t; None: defaults


@opaque_methods
class Member:
    """The base of ``Buffer``: everything except dispatch and combine."""

    # Whether a dispatch may take the slot of an operation that is held: upstream's rule.
    _overwrites_held: ClassVar[bool] = False

    def _open(self, rendezvous: Rendezvous, num_bytes: int, options: Options) -> None:
        self._rendezvous = rendezvous
        self.rank = rendezvous.rank
        self.group_size = rendezvous.num_ranks
        self.num_ep_buffer_bytes = check.limited("num_ep_buffer_bytes", num_bytes, "num_bytes")
        self.num_slots = check.limited("num_slots", options.num_slots)
        self._use_fallback = False  # upstream's tests write it; there is no fallback here
        self._copy_outputs = check.boolean("copy_outputs", options.copy_outputs)
        timeout_us = check.limited("connect_timeout_us", options.connect_timeout_us, "timeout_us")
        taking_part = check.ranks("members", options.members, self.group_size, self.rank)
        deterministic = check.boolean("deterministic", options.deterministic)
        ordered = abi.MW_CONFIG_DETERMINISTIC if deterministic else 0
        tuning = dict(_tuning.native(Tuning()) if options.tuning is None else options.tuning)
        asked = int(tuning.pop("flags"))
        engine: type[Engine] = Cpu
        if tuning.get("device") == abi.MW_DEVICE_CUDA:
            engine, hint = Cuda, "get_ep_buffer_size_hint"
            refuse_unsized("cuda", "num_ep_buffer_bytes", self.num_ep_buffer_bytes, hint)
        self.runtime = engine(
            rank=self.rank,
            num_ranks=self.group_size,
            num_bytes=self.num_ep_buffer_bytes,
            num_slots=self.num_slots,
            vector_width=check.limited("vector_width", options.vector_width),
            flags=ordered | asked | _flags_from_environment(),
            slow_after_us=check.limited("slow_after_us", options.slow_after_us),
            tuning=tuning,
            overwrites_held=self._overwrites_held,
        )
        self._finalizer = weakref.finalize(self, self.runtime.abandon)
        try:
            rendezvous.construct(self.runtime, taking_part, timeout_us)
            self.runtime.events.fallbacks.look(self.paths())
        except BaseException:
            self._finalizer()
            raise

    def update_ep_member(
        self, *, members: Sequence[int] | None = None, timeout_us: int = CONNECT_TIMEOUT_US
    ) -> None:
        """Changes the membership: replaces lost ranks, lets ranks leave or come.

        Collective over the ranks of the next epoch: survivors and fenced ranks call this, a
        fresh process constructs its ``Buffer``. Survivors keep their addresses, rank numbers
        and shapes. Handles and operations of the old epoch end.

        Args:
            members: the ranks to wait for; None: all. Other ranks that have come are let in as
                well.
            timeout_us: how long the call may take; -1: for ever. It waits for absent ranks until
                the last 2 s (or the second half, if that is less). Then it goes on with the ranks
                that have come, unless they are fewer than the members that stay away. A rank that
                is left out is fenced.

        Raises:
            DeadlineError: this rank found no other rank to begin an epoch with, or the store, which
                the text names, did not answer.
        """
        ranks = check.ranks("members", members, self.group_size, self.rank)
        timeout_us = check.timeout(timeout_us)
        self._rendezvous.update(self.runtime, ranks, timeout_us)
        self.runtime.events.fallbacks.look(self.paths())

    def members(self) -> list[int]:
        """The ranks that are in the group now.

        Returns:
            Rank numbers, ascending; without this one, if it was fenced.
        """
        ranks: int = self.runtime.members().ranks
        return [rank for rank in range(self.group_size) if ranks >> rank & 1]

    @property
    def epoch(self) -> int:
        """The number of this rank's epoch; it rises with every update."""
        return int(self.runtime.members().epoch)

    def counters(self) -> dict[str, Any]:
        """Totals since construction.

        Returns:
            Rows, bytes and nanoseconds, by the names in ``mw_counters_t``. ``num_rows_sent_to`` and
            ``wait_ns_for`` are lists by rank.

        Raises:
            ClosedError: the buffer is closed.
        """
        return self.runtime.counters()

    def paths(self) -> list[dict[str, Any]]:
        """How this rank reaches every other rank.

        Returns:
            One dict per rank, by rank, with ``"rank"``, ``"carrier"`` ("self", "shm", "tcp",
            "verbs"; "" for an absent rank), ``"device"`` (of this rank: an RDMA device, or the
            address that it listens at), ``"why"``: the reason for the choice, and ``"fell_back"``:
            whether one of the two ranks has, or had, a carrier that it prefers. That is also
            logged, once per rank.
        """
        return recorded.paths(self.runtime)

    def stats(self) -> dict[str, Any]:
        """What operations cost and moved since construction, on this rank.

        Works on a fenced rank and after a defect, until ``close()``.

        Returns:
            ``"dispatch"`` and ``"combine"`` have counts, times, bytes, rows, histograms, waiting by
            rank, and how often each rank came last. ``"expert_rows"`` has the load of the local
            experts, ``"memory"`` what was allocated. ``"remote"`` has the traffic with ranks of
            other hosts, and the state of those ranks. docs/observability.md describes every key.
        """
        return recorded.stats(self.runtime)

    def trace(
        self,
        path: str | os.PathLike[str] | None = None,
        last: int | None = None,
        *,
        all_ranks: bool = False,
    ) -> dict[str, Any]:
        """The last operations (at most 1024) as a Chrome trace, for ui.perfetto.dev.

        Works on a fenced rank and after a defect, until ``close()``.

        Args:
            path: file to write the JSON to; None writes none.
            last: operations per rank at most; None: all that are remembered.
            all_ranks: with the operations of the other ranks of this host. They are read from the
                ranks' memory, so no other rank takes part: this is not a collective, and a rank may
                be frozen or dead. ``moewire trace merge`` merges the files of several hosts.

        Returns:
            The trace, as it was written.

        Raises:
            InvalidArgument: ``last`` is out of its bounds.
        """
        if last is not None:
            check.integer("last", last, 1, (1 << 31) - 1)
        events: list[trace.Event] = []
        for rank in range(self.group_size) if all_ranks else [self.rank]:
            events += trace.slices(rank, recorded.records(self.runtime, rank, last))
        found = trace.document(events, recorded.clock(self.runtime, self.rank, all_ranks))
        if path is not None:
            trace.write(found, path)
        return found

    def close(self) -> None:
        """Leaves the group and frees the workspace; peers that wait are told. Idempotent.

        Tensors over the workspace stay readable, with stale numbers.

        Raises:
            MoewireError: on CUDA, the device still works for the buffer, or another process has its
                memory open. Call it again, or drop the buffer, which tries once more.
        """
        self.runtime.close()
        self._finalizer.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _flags_from_environment() -> int:
    flags = abi.MW_CONFIG_DEBUG_FILL if switch("MOEWIRE_DEBUG") else 0
    return flags | (0 if switch("MOEWIRE_RECORD", default=True) else abi.MW_CONFIG_NO_RECORD)
