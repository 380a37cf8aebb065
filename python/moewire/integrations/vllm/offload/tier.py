"""A secondary tier of vLLM's ``TieringOffloadingSpec`` in a block store.

In a configuration ``{"type": "moewire", "servers": [...], ...}``; docs/vllm.md has the options.
All calls come from vLLM's scheduler, one at a time, and none waits for the store but
``drain_jobs``. Written against vLLM 0.32.0; the interface of 0.33.0 is the same.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable
from dataclasses import asdict
from typing import Any, ClassVar

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
    OffloadingConnectorStats,
)
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingCounterMetadata,
    OffloadingEvent,
    OffloadingGaugeMetadata,
    RequestOffloadingContext,
)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

from ....errors import InvalidArgument
from ....store import Namespace
from ... import _engines
from . import _client, _counts, _engine, _options
from ._client import StoreClient
from ._lookups import Lookups
from ._namespace import Identity, of_engine
from ._requests import Requests
from ._touches import Touches
from ._transfers import Ended, Transfers

_DRAIN = 120.0  # seconds; then the client is closed, so that it leaves vLLM's memory alone
_LAST = 2.0  # seconds for stores under way at the engine's end
_log = logging.getLogger("moewire")


class MoewireTier(SecondaryTierManager):  # type: ignore[misc]
    """One per engine; its blocks have the pages of all the engine's ranks."""

    medium: ClassVar[Any] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        _warn_of_version()
        chosen = _options.parsed(options)
        self.locality = None if chosen.locality is None else Locality(chosen.locality)
        self._events: list[Any] | None = _events(offloading_spec, chosen)
        self._counts = _counts.Counts()
        self._reported: dict[str, int] = {}
        self._rows = primary_kv_view.cast("B")
        self.namespace = _namespace(offloading_spec, self._block_size_bytes, chosen)
        client = _connect(chosen, self.namespace, self._rows)
        self._touches = Touches(client)
        seconds = chosen.timeout_us / 1e6
        self._requests = Requests(client, seconds, time.monotonic, self._counts)
        self._lookups = Lookups(self._requests, seconds, time.monotonic, self._counts)
        self._transfers = Transfers(
            self._requests,
            self._row,
            self._block_size_bytes,
            chosen.max_backlog_bytes,
            time.monotonic,
            self._counts,
        )

    def _row(self, chunk: int) -> memoryview:
        begin = chunk * self._block_size_bytes
        return self._rows[begin : begin + self._block_size_bytes]

    def on_new_request(self, req_context: Any) -> Any:
        """Every chunk is offered as soon as it is complete."""
        return RequestOffloadingContext()

    def lookup(self, key: bytes, req_context: Any) -> Any:
        """RETRY until the store has answered."""
        found = self._lookups.of(key, req_context.req_id)
        if found is None:
            return LookupResult.RETRY
        return LookupResult.HIT if found else LookupResult.MISS

    def submit_store(self, job_metadata: Any, **_: Any) -> None:
        """Begins to store the job's chunks."""
        self._transfers.store(job_metadata.job_id, job_metadata.keys, job_metadata.chunk_ids)

    def submit_load(self, job_metadata: Any, **_: Any) -> None:
        """Begins to load the job's chunks."""
        self._transfers.load(job_metadata.job_id, job_metadata.keys, job_metadata.chunk_ids)

    def get_finished_jobs(self) -> Iterable[Any]:
        """Jobs that ended; what could not be loaded counts as missing from now on."""
        self._requests.poll()
        return [self._result(ended) for ended in self._transfers.ended()]

    def _result(self, ended: Ended) -> Any:
        whole = len(ended.ok) == len(ended.keys)
        if ended.is_load and not whole:
            self._lookups.mark_miss(set(ended.keys).difference(ended.ok))
        self._tell(ended.gone, removed=True)
        if not ended.is_load:
            self._tell(ended.ok, removed=False)
        return JobResult(
            job_id=ended.job,
            success=whole,
            successful_keys=tuple(ended.ok) if ended.is_load and ended.ok and not whole else None,
            transfer_time=ended.seconds,
            transfer_bytes=ended.num_bytes,
        )

    def _tell(self, keys: list[bytes], removed: bool) -> None:
        if self._events is not None and keys:
            event = OffloadingEvent(keys, self.medium, removed, locality=self.locality)
            self._events.append(event)

    def take_events(self) -> Iterable[Any]:
        """Blocks stored, and blocks that turned out to be gone, since the last call."""
        if self._events is not None:
            yield from self._events
            self._events.clear()

    def touch(self, keys: Collection[bytes], req_context: Any) -> None:
        """Blocks in use, whether vLLM has them itself or not."""
        self._touches.add(keys)

    def on_request_finished(self, req_context: Any) -> None:
        """Forgets what the request asked for."""
        self._lookups.forget(req_context.req_id)

    def on_schedule_end(self, context: Any) -> None:
        """Sends what this step asked for."""
        self._lookups.flush()
        self._requests.poll()

    def drain_jobs(self) -> None:
        """Waits for every load and store; the client's deadlines bound it."""
        self._requests.drain(_DRAIN)
        if not self._requests.idle():
            _log.error("the store's client has not ended all requests in %.0f s: closed", _DRAIN)
            self._requests.close()

    def shutdown(self) -> None:
        """Closes the client; nothing touches vLLM's memory afterwards. Idempotent.

        What is on its way to the store gets a moment to arrive.
        """
        self._touches.close()
        self._requests.drain(_LAST)
        self._requests.close()
        self._rows.release()

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
        """``vllm:kv_offload_moewire_*``."""
        counters = {
            _counts.PREFIX + name: OffloadingCounterMetadata(documentation=words)
            for name, words in _counts.WORDS.items()
        }
        backlog = OffloadingGaugeMetadata(documentation=_counts.BACKLOG_WORDS)
        return {**counters, _counts.PREFIX + _counts.BACKLOG: backlog}

    def get_stats(self) -> Any:
        """What was counted since the last call."""
        stats = OffloadingConnectorStats()
        for name, value in self._counts.since(self._reported).items():
            stats.increase_counter(_counts.PREFIX + name, value)
        if self._transfers.backlog != self._reported.get(_counts.BACKLOG, 0):
            stats.set_gauge(_counts.PREFIX + _counts.BACKLOG, self._transfers.backlog)
        self._reported = {**asdict(self._counts), _counts.BACKLOG: self._transfers.backlog}
        return stats


def _connect(chosen: _options.Options, namespace: Namespace, rows: memoryview) -> StoreClient:
    client = _client.connect(chosen.settings, namespace)
    try:
        client.register(rows)
    except BaseException:
        client.close()
        raise
    return client


def _events(spec: Any, chosen: _options.Options) -> list[Any] | None:
    if not chosen.enable_kv_events:
        return None
    if spec.kv_events_config.enable_kv_cache_events:
        return []
    _log.warning("enable_kv_events: vLLM's own --kv-events-config is off, so there are none")
    return None


def _namespace(spec: Any, row_bytes: int, chosen: _options.Options) -> Namespace:
    engine = _engine.found(spec.config.extra_config)
    if engine is not None:
        weights = _engine.weights(engine, chosen.weights)
        _warn_of_failures(engine.kv_transfer_config)
    elif chosen.weights is not None:
        weights = chosen.weights
    else:
        raise InvalidArgument("weights: none given, and vLLM's configuration is not found")
    model = chosen.model or spec.config.model.name
    identity = Identity(model, weights, _engine.machine(engine), chosen.salt)
    return of_engine(spec.config, row_bytes, identity)


def _warn_of_failures(transfer: Any) -> None:
    if transfer.kv_load_failure_policy != "recompute":
        _log.warning(
            'kv_load_failure_policy is "%s": a request whose blocks cannot be loaded fails '
            '(fix: "kv_load_failure_policy": "recompute" in --kv-transfer-config)',
            transfer.kv_load_failure_policy,
        )


def _warn_of_version() -> None:
    tested = _engines.VLLM.tested
    if vllm.__version__.partition("+")[0] not in tested:
        text = "the tier was tested with vLLM %s only, not with %s"
        _log.warning(text, " and ".join(tested), vllm.__version__)
